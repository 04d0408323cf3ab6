// The warning about random weights: on the page, on every saved figure and in every saved table.

import { h } from "./dom.js";
import { Drawing } from "./drawing.js";
import { linesOf, textWidth } from "./marks.js";

const STYLE = { size: 11, bold: true, fill: "#d43a3a" };
const EDGE = 12;
const LINE = 15;

/** A line below the title; hidden without a warning. */
export function createWarning(scene) {
  return h("p", { class: "warning", role: "alert", hidden: !scene.warning, data: { testid: "warning" } }, scene.warning || "");
}

/** A drawing with the warning above it; the drawing itself where there is none. */
export function labelledDrawing(drawing, warning) {
  if (!warning) return drawing;
  const lines = linesOf(warning, Math.max(drawing.width, 320) - 2 * EDGE, STYLE);
  const width = Math.max(drawing.width, Math.ceil(Math.max(...lines.map((line) => textWidth(line, STYLE)))) + 2 * EDGE);
  const above = LINE * lines.length + EDGE;
  const made = new Drawing(width, drawing.height + above, drawing.background);
  lines.forEach((line, index) => made.text(EDGE, LINE * (index + 1), line, STYLE));
  return made.add(drawing, 0, above);
}

/** A table with the warning in a last column of every row. */
export function labelledTable({ head, rows }, warning) {
  return warning ? { head: [...head, "warning"], rows: rows.map((row) => [...row, warning]) } : { head, rows };
}
