// How true the weights of a site are, in words.

const HOW = {
  exact: "The very weights the model used, computed again from its queries and keys.",
  effective: "This mechanism has no softmax weights; these are the weights its output amounts to.",
  unverified: "Computed from what is known of this layer, but not confirmed by the output it gave.",
};

/** exact, effective or unverified. */
export function howWord(site) {
  return HOW[site.how] ? site.how : "exact";
}

/** What that means. */
export function howTitle(site) {
  return HOW[howWord(site)];
}
