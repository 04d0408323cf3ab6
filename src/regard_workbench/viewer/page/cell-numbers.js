// Numbers inside the cells of a small matrix, above the map; hidden where cells are too small for them.

import { h } from "./dom.js";

const SMALLEST = 30; // pixels of a cell
const MOST = 1600; // cells in view
const FONT = "10px system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif";

/** `{element, draw(viewport, ratio, codeAt, palette, difference)}`; `codeAt(row, key)` gives a code, or null while it loads. */
export function createCellNumbers() {
  const element = h("canvas", { class: "cell-numbers", "aria-hidden": "true", hidden: true });
  return {
    element,
    draw(viewport, ratio, codeAt, palette, difference) {
      const { zoom } = viewport;
      const [left, top] = [Math.max(0, Math.floor(viewport.x)), Math.max(0, Math.floor(viewport.y))];
      const right = Math.min(viewport.columns, Math.ceil(viewport.x + viewport.width / zoom));
      const bottom = Math.min(viewport.rows, Math.ceil(viewport.y + viewport.height / zoom));
      const hidden = zoom < SMALLEST || (right - left) * (bottom - top) > MOST;
      if (element.hidden !== hidden) element.hidden = hidden;
      if (hidden) return;
      const [width, height] = [Math.round(viewport.width * ratio), Math.round(viewport.height * ratio)];
      if (element.width !== width || element.height !== height) {
        element.width = width;
        element.height = height;
      }
      const paint = element.getContext("2d");
      paint.setTransform(ratio, 0, 0, ratio, 0, 0);
      paint.clearRect(0, 0, viewport.width, viewport.height);
      paint.font = FONT;
      paint.textAlign = "center";
      paint.textBaseline = "middle";
      for (let row = top; row < bottom; row += 1) {
        for (let key = left; key < right; key += 1) {
          const code = codeAt(row, key);
          if (code === null) continue;
          const value = difference ? palette.differenceOf(code) : palette.weightOf(code);
          const text = numberText(value);
          if (!text) continue;
          paint.fillStyle = difference ? palette.differenceInk(value) : palette.ink(value);
          paint.fillText(text, (key + 0.5 - viewport.x) * zoom, (row + 0.5 - viewport.y) * zoom);
        }
      }
    },
  };
}

/** Two decimals without the leading zero: ".16", ".00" for what rounds to zero; nothing for zero itself and hidden cells. */
function numberText(value) {
  if (value === 0) return "";
  const text = Math.abs(value).toFixed(2);
  return `${value < 0 && text !== "0.00" ? "−" : ""}${text.startsWith("0") ? text.slice(1) : text}`;
}
