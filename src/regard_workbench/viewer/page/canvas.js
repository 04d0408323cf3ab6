// A painter without WebGL2: each tile is coloured once into its own canvas, then copied.

import { codesCanvas } from "./figure.js";

/** A painter with the methods of glPainter. */
export function canvasPainter(canvas) {
  const paint = canvas.getContext("2d", { alpha: false });
  let table = null;
  let version = 0;
  let paper = "";
  return {
    kind: "canvas",
    canvas,
    colors(next, empty) {
      table = next;
      paper = `rgba(${next[4 * empty]}, ${next[4 * empty + 1]}, ${next[4 * empty + 2]}, 0.55)`;
      version += 1;
    },
    upload: (codes, width, height) => ({ codes, width, height, picture: null, version: -1 }),
    release(tile) {
      tile.picture = null;
    },
    begin(red, green, blue) {
      paint.fillStyle = `rgb(${red}, ${green}, ${blue})`;
      paint.fillRect(0, 0, canvas.width, canvas.height);
      paint.imageSmoothingEnabled = false;
    },
    draw(tile, u, v, du, dv, x, y, w, h) {
      if (tile.version !== version) {
        tile.picture = codesCanvas(tile.codes, tile.width, tile.height, table, tile.picture || undefined);
        tile.version = version;
      }
      paint.drawImage(tile.picture, u, v, du, dv, x, y, w, h);
      if (w / du >= 14) rule(u, v, du, dv, x, y, w, h);
    },
    fill(x, y, w, h, [red, green, blue]) {
      paint.fillStyle = `rgb(${red}, ${green}, ${blue})`;
      paint.fillRect(Math.round(x), Math.round(y), Math.round(x + w) - Math.round(x), Math.round(y + h) - Math.round(y));
    },
    destroy() {},
  };

  /** A thin gap between large cells. */
  function rule(u, v, du, dv, x, y, w, h) {
    const cell = w / du;
    paint.fillStyle = paper;
    for (let column = Math.ceil(u); column < u + du; column += 1) paint.fillRect(x + (column - u) * cell, y, 1, h);
    for (let row = Math.ceil(v); row < v + dv; row += 1) paint.fillRect(x, y + (row - v) * cell, w, 1);
  }
}
