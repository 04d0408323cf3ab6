// The whole matrix as a thumbnail, with a frame around the visible part; click or drag to move.

import { h } from "./dom.js";
import { codesCanvas } from "./figure.js";

const LARGEST = 116;

/** `{element, paint(tile, table), update(viewport)}`; `go(column, row)` moves the centre of the window. */
export function createMinimap(go) {
  const canvas = h("canvas", { class: "mini-map" });
  const frame = h("div", { class: "mini-frame" });
  const element = h("div", { class: "mini", hidden: true, "aria-hidden": "true", data: { testid: "minimap" } }, canvas, frame);
  const size = { width: 1, height: 1, columns: 1, rows: 1 };
  let held = false;
  const move = (event) => {
    const box = canvas.getBoundingClientRect();
    go(((event.clientX - box.left) / box.width) * size.columns, ((event.clientY - box.top) / box.height) * size.rows);
  };
  element.addEventListener("pointerdown", (event) => {
    held = true;
    element.setPointerCapture(event.pointerId);
    move(event);
    event.stopPropagation();
  });
  element.addEventListener("pointermove", (event) => held && move(event));
  element.addEventListener("pointerup", () => {
    held = false;
  });
  return {
    element,
    paint(tile, table) {
      codesCanvas(tile.codes, tile.width, tile.height, table, canvas);
    },
    update(viewport) {
      const shown = viewport.zoom > viewport.whole() * 1.3;
      if (element.hidden === shown) element.hidden = !shown;
      if (!shown) return;
      const scale = LARGEST / Math.max(viewport.columns, viewport.rows);
      if (size.columns !== viewport.columns || size.rows !== viewport.rows || size.width === 1) {
        Object.assign(size, { columns: viewport.columns, rows: viewport.rows, width: Math.max(6, viewport.columns * scale), height: Math.max(6, viewport.rows * scale) });
        canvas.style.width = `${size.width}px`;
        canvas.style.height = `${size.height}px`;
      }
      const wide = Math.min(size.width, (viewport.width / viewport.zoom) * scale);
      const tall = Math.min(size.height, (viewport.height / viewport.zoom) * scale);
      // Only transforms: moving the frame must not trigger a layout.
      frame.style.transform = `translate(${viewport.x * scale}px, ${viewport.y * scale}px)`;
      frame.style.width = `${Math.max(4, wide)}px`;
      frame.style.height = `${Math.max(4, tall)}px`;
    },
  };
}
