// What SVG, PDF and canvas need to know alike about a drawing's marks.

/** The letters of saved pictures: faces every machine and every PDF reader has. */
export const FAMILY = "Helvetica, Arial, 'Liberation Sans', sans-serif";

/** The font of a text mark for a canvas. */
export function fontOf(style) {
  return `${style.bold ? "bold " : ""}${style.size || 12}px ${FAMILY}`;
}

const shared = {};

/** How wide a text will be. */
export function textWidth(text, style = {}) {
  if (!shared.paint) shared.paint = document.createElement("canvas").getContext("2d");
  shared.paint.font = fontOf(style);
  return shared.paint.measureText(text).width;
}

/** A text as lines of at most a width; a word that is longer stands alone on its line. */
export function linesOf(text, width, style = {}) {
  const lines = [];
  for (const word of String(text).split(" ")) {
    const longer = lines.length ? `${lines.at(-1)} ${word}` : word;
    if (lines.length && textWidth(longer, style) <= width) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}

/** A coordinate without a tail of digits. */
export function short(value) {
  return String(Math.round(value * 100) / 100);
}

/** What a shape is filled with: nothing when only a stroke was named. */
export function fillOf(style) {
  if (style.fill) return style.fill;
  return style.fill === null || style.stroke ? "none" : "black";
}
