// A whole map of weights as one small canvas, with axis labels, a cross under the pointer, and marks.
// For maps that fit on the screen at once; the matrix view is the one for large ones.

import { h, fill } from "../dom.js";
import { codesCanvas } from "../figure.js";
import { recent } from "../source.js";
import { tokenText } from "../formatting.js";

const TILE = 256;
const ROOM = 12; // pixels a label needs
const [TALLEST, WIDEST] = [0.9, 8]; // width by height
const LETTERS = 16; // of a label
const LETTER = 6.4; // pixels of one letter, about

/** A caching loader: `load(where, size, limit)` → `{width, height, codes, level, sampled, queries, keys}`. */
export function createMaps(source, kept = 48) {
  const maps = recent(kept);
  return (where, size, limit = 512) => {
    const { variant, site, head, call = -1, minus = null } = where;
    const name = [variant, site, head, call, minus, limit].join(" ");
    if (!maps.has(name)) {
      const promise = loaded(source, { variant, site, head, call, minus }, size, limit);
      maps.set(name, promise);
      promise.catch(() => maps.delete(name));
    }
    return maps.get(name);
  };
}

async function loaded(source, where, size, limit) {
  // The finest level at which the whole map fits: one pixel is then the strongest of 2^level × 2^level weights.
  let level = 0;
  while (Math.max(size.queries, size.keys) > limit * 2 ** level) level += 1;
  const width = Math.ceil(size.keys / 2 ** level);
  const height = Math.ceil(size.queries / 2 ** level);
  const codes = new Uint8Array(width * height);
  const corners = [];
  for (let y = 0; y * TILE < height; y += 1) for (let x = 0; x * TILE < width; x += 1) corners.push({ x, y });
  let sampled = false;
  await Promise.all(
    corners.map(async ({ x, y }) => {
      const tile = await source.tile({ ...where, level, x, y });
      sampled ||= tile.sampled;
      for (let row = 0; row < tile.height; row += 1) {
        codes.set(tile.codes.subarray(row * tile.width, (row + 1) * tile.width), (y * TILE + row) * width + x * TILE);
      }
    }),
  );
  return { width, height, codes, level, sampled, queries: size.queries, keys: size.keys };
}

/** A map of rows of weights that were read one by one. */
export function mapOfRows(lines, keys, codeOf) {
  const codes = new Uint8Array(lines.length * keys);
  lines.forEach((line, row) => line.forEach((weight, column) => (codes[row * keys + column] = codeOf(weight))));
  return { width: keys, height: lines.length, codes, level: 0, sampled: false, queries: lines.length, keys };
}

/** The same map with queries across and keys down. */
export function turned(map) {
  const codes = new Uint8Array(map.codes.length);
  for (let row = 0; row < map.height; row += 1) {
    for (let column = 0; column < map.width; column += 1)
      codes[column * map.height + row] = map.codes[row * map.width + column];
  }
  return { ...map, width: map.height, height: map.width, codes, queries: map.keys, keys: map.queries };
}

/**
 * A map with its surroundings. `onCell({row, column} | null)` follows the pointer and the arrow keys, `onPick` a click or
 * the enter key. `show(map, table, {rows, columns})` paints; `cursor(cell)` sets the cross; `mark(elements)` lays marks
 * over cells (`markAt` makes them).
 */
export function createMap({ title, testid, onCell = () => {}, onPick = () => {}, height = null }) {
  const canvas = h("canvas", { class: "map-canvas", "aria-hidden": "true" });
  const across = h("div", { class: "map-cross in-row", hidden: true });
  const down = h("div", { class: "map-cross in-column", hidden: true });
  const marks = h("div", { class: "map-marks" });
  const words = h("p", { class: "map-words", hidden: true });
  const frame = h(
    "div",
    {
      class: "map-frame",
      tabindex: 0,
      role: "application",
      "aria-label": `${title}: arrow keys move the cross`,
      data: testid ? { testid } : {},
    },
    canvas,
    marks,
    across,
    down,
    words,
  );
  const left = h("div", { class: "map-labels rows", "aria-hidden": "true" });
  const top = h("div", { class: "map-labels columns", "aria-hidden": "true" });
  const caption = h("figcaption", {}, title);
  const body = h("div", { class: "map-body" }, h("span"), top, left, frame);
  const element = h("figure", { class: "map" }, caption, body);
  let map = null;
  let names = { rows: [], columns: [] };
  let cell = null;
  if (height) frame.style.height = height;

  const at = (event) => {
    const box = frame.getBoundingClientRect();
    const clip = (value, count) => Math.min(count - 1, Math.max(0, Math.floor(value * count)));
    return {
      row: clip((event.clientY - box.top) / box.height, map.queries),
      column: clip((event.clientX - box.left) / box.width, map.keys),
    };
  };
  const go = (next) => {
    if (cell && next && cell.row === next.row && cell.column === next.column) return;
    cursor(next);
    onCell(next);
  };
  frame.addEventListener("pointermove", (event) => map && go(at(event)));
  frame.addEventListener("pointerleave", () => map && go(null));
  frame.addEventListener("click", (event) => map && onPick(at(event)));
  new ResizeObserver(() => label()).observe(frame);

  function cursor(next) {
    cell = next;
    across.hidden = down.hidden = !next || !map;
    if (!next || !map) return;
    place(across, next.row, map.queries, "top", "height");
    place(down, next.column, map.keys, "left", "width");
    label();
  }

  /** As many labels as fit, always including the one under the cross. */
  function label() {
    if (!map) return;
    // Labels that fit side by side are not rotated.
    const longest = longestOf(names.columns);
    const upright = longest < 2 || LETTER * longest + 5 < frame.clientWidth / map.keys;
    top.classList.toggle("upright", upright);
    top.style.height = upright ? `${names.columns.length ? 20 : 0}px` : roomFor(names.columns);
    lettered(left, names.rows, map.queries, frame.clientHeight, cell && cell.row, "top");
    lettered(top, names.columns, map.keys, frame.clientWidth, cell && cell.column, "left");
  }

  return {
    element,
    canvas,
    frame,
    cursor,
    /** How wide the picture may be, in pixels. */
    limit: (width) => (body.style.gridTemplateColumns = `max-content minmax(0, ${Math.round(width)}px)`),
    caption: (text) => (caption.textContent = text),
    markAt: (row, column, attributes, ...children) =>
      h(
        "div",
        {
          ...attributes,
          style: {
            top: `${(100 * row) / map.queries}%`,
            left: `${(100 * column) / map.keys}%`,
            height: `${100 / map.queries}%`,
            width: `${100 / map.keys}%`,
          },
        },
        ...children,
      ),
    mark: (elements) => fill(marks, elements),
    show(next, table, labels = { rows: [], columns: [] }) {
      map = next;
      names = labels;
      words.hidden = true;
      // Square cells, within limits of the aspect ratio.
      if (!height) frame.style.aspectRatio = String(Math.min(WIDEST, Math.max(TALLEST, next.keys / next.queries)));
      canvas.hidden = false;
      codesCanvas(next.codes, Math.max(1, next.width), Math.max(1, next.height), table, canvas);
      left.style.width = roomFor(labels.rows);
      // Side by side, a map with words gets their room on top of its share, so that all pictures are equally large.
      element.style.flexBasis = roomFor(labels.rows);
      fill(left);
      fill(top);
      cursor(cell && cell.row < next.queries && cell.column < next.keys ? cell : null);
      label();
    },
    /** A message in place of the map. */
    say(text) {
      map = null;
      canvas.hidden = true;
      across.hidden = down.hidden = true;
      fill(marks);
      words.hidden = false;
      words.textContent = text;
    },
    onKey(event) {
      if (!map || !frame.matches(":focus")) return false;
      const by = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (by) {
        const from = cell || { row: 0, column: 0 };
        go({
          row: Math.min(map.queries - 1, Math.max(0, from.row + by[0])),
          column: Math.min(map.keys - 1, Math.max(0, from.column + by[1])),
        });
      } else if (event.key === "Enter" && cell) onPick(cell);
      else return false;
      return true;
    },
  };
}

function place(element, index, count, side, length) {
  element.style[side] = `${(100 * index) / count}%`;
  element.style[length] = `${100 / count}%`;
}

function longestOf(labels) {
  return labels.reduce((most, label) => Math.max(most, tokenText(label, LETTERS).length), 0);
}

/** Space for labels beside a map: that of the longest, up to a limit. */
function roomFor(labels) {
  return `${labels.length ? Math.round(14 + LETTER * Math.min(longestOf(labels), LETTERS - 4)) : 0}px`;
}

function lettered(element, labels, count, length, chosen, side) {
  if (!labels.length || !length) return;
  const every = Math.max(1, Math.ceil((ROOM * count) / length));
  const shown = [];
  for (let index = 0; index < count; index += 1) {
    // Regular labels too close to the selected one are left out.
    const near = chosen !== null && chosen !== undefined && Math.abs(index - chosen) < every;
    if (index === chosen || (index % every === 0 && !near)) shown.push(index);
  }
  fill(
    element,
    shown.map((index) => {
      const text = labels[index] === undefined ? String(index) : tokenText(labels[index], LETTERS);
      return h(
        "span",
        {
          class: index === chosen ? "chosen" : null,
          title: tokenText(labels[index], 200),
          style: { [side]: `${(100 * (index + 0.5)) / count}%` },
        },
        text,
      );
    }),
  );
}
