// What SVG, PDF and canvas share about a drawing's marks.

/** The font of saved figures, which every machine has; a PDF holds another, fitted to the same widths. */
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

/** A text broken into lines of a maximum width; a longer word gets a line of its own. */
export function linesOf(text, width, style = {}) {
  const lines = [];
  for (const word of String(text).split(" ")) {
    const longer = lines.length ? `${lines.at(-1)} ${word}` : word;
    if (lines.length && textWidth(longer, style) <= width) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}

/** A rounded coordinate. */
export function short(value) {
  return String(Math.round(value * 100) / 100);
}

/** The fill of a shape: none when only a stroke was given. */
export function fillOf(style) {
  if (style.fill) return style.fill;
  return style.fill === null || style.stroke ? "none" : "black";
}
