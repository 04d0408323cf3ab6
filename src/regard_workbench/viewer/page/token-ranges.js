// Which part of a text each token is. Labels of tokens carry the marks of their tokenizer, and special tokens are no text.

const MARKS = /^(##|@@|[▁Ġ\s]+)|(@@|<\/w>)$/gu;

/** For each label `[start, end]` in the text, or null where it is not found in order. */
export function rangesOf(text, labels) {
  const plain = fold(text);
  let from = 0;
  return labels.map((label) => {
    const word = fold(String(label).replace(MARKS, ""));
    if (!word) return null;
    const at = plain.indexOf(word, from);
    // A piece that is far away is another one of the same letters: the label itself is no text.
    if (at < 0 || plain.slice(from, at).trim()) return null;
    from = at + word.length;
    return [at, from];
  });
}

/** Lower case, letter by letter, so that positions stay the same. */
function fold(text) {
  return Array.from(text, (letter) => {
    const bare = letter.normalize("NFD").replace(/\p{M}/gu, "") || letter;
    const small = bare.toLowerCase();
    return small.length === letter.length ? small : letter;
  }).join("");
}
