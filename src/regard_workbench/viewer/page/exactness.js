// How exact the weights of a site are, in words.

const HOW = {
  exact: "The weights the model used, recomputed from its queries and keys.",
  effective: "This mechanism has no softmax weights; its output is the mean of its values by these weights.",
  unverified: "Computed from what is known of this layer, but not confirmed by its output.",
};

/** exact, effective or unverified. */
export function exactnessWord(site) {
  return HOW[site.how] ? site.how : "exact";
}

/** "exact weights", or "exact, stored to 8 bits" for a page that holds a copy. */
export function exactnessText(site, note = "") {
  return note ? `${exactnessWord(site)}, ${note}` : `${exactnessWord(site)} weights`;
}

/** What that means. */
export function exactnessTitle(site) {
  return HOW[exactnessWord(site)];
}
