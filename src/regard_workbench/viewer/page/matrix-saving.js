// The visible part of a matrix as a figure and as a table.

import { Drawing } from "./drawing.js";
import { addLegend, codesCanvas, figureColors, headingOf } from "./figure.js";
import { textWidth } from "./marks.js";
import { css } from "./palette.js";
import { answered } from "./answer.js";
import { WHOSE, whoseCells, whoseText } from "./naming.js";
import { headText, keyText, rowText, seenBy } from "./formatting.js";
import { firstMark, stepFor } from "./axes.js";

const PLOT = 520;
const MOST_VECTOR = 64 * 64;
const MOST_ROWS = 256;

/** A promise of a drawing: vector cells when they are few, else one image of the level shown. */
export async function matrixDrawing(context, { viewport, tiles, side, level, site, call, table }) {
  const { scene, palette, store } = context;
  const state = store.get();
  const colors = figureColors(palette);
  const labelled = seenBy(scene, state.variant);
  const seen = viewport.seen();
  const [columns, rows] = [seen.right - seen.left, seen.bottom - seen.top];
  const cell = Math.min(PLOT / Math.max(columns, rows), 26);
  const words = cell >= 7;
  const room = words ? margins(labelled, site, call, seen, letters(cell)) : { left: 60, top: 34, right: 28 };
  const { left } = room;
  const coarse = level ? ` · strongest of each ${2 ** level} × ${2 ** level}` : "";
  const about = `${scene.title || ""}${variantText(scene, state)}${coarse}`;
  const heading = headingOf(headText(scene, state.site, state.head), about, Math.max(left + columns * cell + room.right, 320), palette);
  const top = heading.height + room.top;
  const drawing = new Drawing(heading.width, top + rows * cell + 58, colors.paper);
  const region = await gathered(tiles, seen, level, side);
  if (level === 0 && columns * rows <= MOST_VECTOR) {
    for (let row = 0; row < rows; row += 1) {
      for (let column = 0; column < columns; column += 1) {
        const code = region.codes[row * columns + column];
        if (code || state.minus !== null) drawing.rect(left + column * cell, top + row * cell, cell, cell, { fill: css(table.subarray(4 * code, 4 * code + 3)) });
      }
    }
  } else {
    const step = 2 ** level;
    const picture = codesCanvas(region.codes, region.width, region.height, table);
    drawing.image(picture, left + (region.left * step - seen.left) * cell, top + (region.top * step - seen.top) * cell, region.width * step * cell, region.height * step * cell);
  }
  drawing.rect(left, top, columns * cell, rows * cell, { fill: null, stroke: colors.line, width: 0.75 });
  labels(drawing, { scene: labelled, site, call, seen, cell, left, top, colors, words });
  heading.add(drawing);
  addLegend(drawing, left, top + rows * cell + 20, palette, state.minus !== null);
  return drawing;
}

/** The shown model where there are several, the subtracted one, and the answer of a classifier. */
function variantText(scene, state) {
  const name = scene.variants.length > 1 ? ` · ${scene.variants[state.variant].name}` : "";
  if (state.minus !== null) return `${name} − ${scene.variants[state.minus].name}`;
  const answer = answered(scene, state.variant);
  return answer ? `${name} · answer:${answer.slice(2)}` : name;
}

/** The file name of a saved matrix: model, subtracted model, head, step. */
export function matrixSubject({ scene, store }, site, call) {
  const state = store.get();
  const name = scene.variants.length > 1 ? scene.variants[state.variant].name : "";
  const other = state.minus === null ? "" : `minus ${scene.variants[state.minus].name}`;
  const step = call >= 0 && site.calls.length > 1 ? `step ${call}` : "";
  return [name, other, whoseText(scene, state), step];
}

function letters(cell) {
  return Math.min(10, Math.max(6, cell * 0.8));
}

/** The space of the longest labels. */
function margins(scene, site, call, seen, size) {
  const room = { left: 40, top: 20, right: 28 };
  for (let row = seen.top; row < seen.bottom; row += 1) room.left = Math.max(room.left, textWidth(rowText(scene, site, call, row, 18), { size }) + 22);
  for (let key = seen.left; key < seen.right; key += 1) room.top = Math.max(room.top, textWidth(keyText(scene, site, key, 18), { size }) * 0.87 + 12);
  // A tilted label extends beyond its column to the right.
  const last = textWidth(keyText(scene, site, seen.right - 1, 18), { size });
  return { left: room.left, top: 10 + room.top, right: Math.max(room.right, last * 0.5 + 12) };
}

/** Exact numbers of the visible rows when they are few, else the strongest keys of every row. */
export async function matrixTable({ scene: all, source, store }, { viewport, site, call }) {
  const state = store.get();
  const scene = seenBy(all, state.variant);
  const which = { variant: state.variant, site: state.site, head: state.head, call: state.call, minus: state.minus };
  const seen = viewport.seen();
  const [model, ...whose] = whoseCells(all, state);
  whose.unshift(state.minus === null ? model : `${model} − ${all.variants[state.minus].name}`);
  const rows = [];
  if (seen.bottom - seen.top <= MOST_ROWS) {
    for (let row = seen.top; row < seen.bottom; row += 1) {
      const values = await source.row({ ...which, row });
      rows.push([...whose, row, rowText(scene, site, call, row), ...values.subarray(seen.left, seen.right)]);
    }
    const keys = Array.from({ length: seen.right - seen.left }, (_, index) => `${seen.left + index} ${keyText(scene, site, seen.left + index)}`);
    return { head: [...WHOSE, "row", "query", ...keys], rows };
  }
  const top = await source.top({ ...which, top: 8 });
  top.keys.forEach((keys, row) => {
    keys.forEach((key, rank) => rows.push([...whose, row, rowText(scene, site, call, row), key, keyText(scene, site, key), top.weights[row][rank]]));
  });
  return { head: [...WHOSE, "row", "query", "column", "key", "weight"], rows };
}

/** The codes of a region at a level, assembled from its tiles. */
async function gathered(tiles, seen, level, side) {
  const step = 2 ** level;
  const left = Math.floor(seen.left / step);
  const top = Math.floor(seen.top / step);
  const width = Math.ceil(seen.right / step) - left;
  const height = Math.ceil(seen.bottom / step) - top;
  const codes = new Uint8Array(width * height);
  for (let y = Math.floor(top / side); y * side < top + height; y += 1) {
    for (let x = Math.floor(left / side); x * side < left + width; x += 1) {
      const tile = await tiles.codes(level, x, y);
      for (let row = 0; row < tile.height; row += 1) {
        const line = y * side + row - top;
        if (line < 0 || line >= height) continue;
        const from = Math.max(0, left - x * side);
        const to = Math.min(tile.width, left + width - x * side);
        codes.set(tile.codes.subarray(row * tile.width + from, row * tile.width + to), line * width + x * side + from - left);
      }
    }
  }
  return { codes, left, top, width, height };
}

function labels(drawing, { scene, site, call, seen, cell, left, top, colors, words }) {
  const size = letters(cell);
  const step = words ? 1 : stepFor(cell, 48);
  const style = { size, fill: words ? colors.ink : colors.soft };
  for (let row = firstMark(seen.top, step); row < seen.bottom; row += step) {
    const y = top + (row - seen.top + 0.5) * cell + size * 0.35;
    drawing.text(left - 6, y, words ? rowText(scene, site, call, row, 18) : String(row), { ...style, anchor: "end" });
  }
  for (let column = firstMark(seen.left, step); column < seen.right; column += step) {
    const x = left + (column - seen.left + 0.5) * cell;
    if (words) drawing.text(x + size * 0.35, top - 6, keyText(scene, site, column, 18), { ...style, rotate: -60 });
    else drawing.text(x, top - 6, String(column), { ...style, anchor: "middle" });
  }
}
