// Weights over the patches of a picture: the picture below, colours above it, and a grid of patches that can be pointed at.

import { h } from "../dom.js";
import { barColor } from "../palette.js";
import { weightText } from "../formatting.js";

const TINY = 64; // pixels
const FINE = 336; // pixels along the longer side when edges are smooth

/**
 * `onEnter(patch | null)` and `onPick(patch)` get patches, numbered by rows from 0.
 * Colours run from no weight to the strongest patch: patches share one picture, so single weights are small.
 */
export function createOverlay({ image, palette, onEnter = () => {}, onPick = () => {} }) {
  const count = image.rows * image.columns;
  const cover = h("canvas", { class: "overlay-cover", width: image.columns, height: image.rows });
  const picture = h("img", {
    class: pictureClass(image, "overlay-picture"),
    src: image.data,
    alt: "The picture the model saw",
    draggable: "false",
  });
  const grid = h("div", {
    class: "overlay-grid",
    role: "listbox",
    "aria-label": "Patches",
    style: { gridTemplateColumns: `repeat(${image.columns}, 1fr)`, gridTemplateRows: `repeat(${image.rows}, 1fr)` },
  });
  const patches = Array.from({ length: count }, (_, index) =>
    h("div", {
      class: "patch",
      role: "option",
      tabindex: index ? -1 : 0,
      "aria-label": patchText(image, index),
      data: { testid: `patch-${index}` },
    }),
  );
  const indexOf = new Map(patches.map((patch, index) => [patch, index]));
  grid.append(...patches);
  const layers = h("div", { class: "overlay-layers", data: { trace: "flat" } }, picture, cover);
  const element = h(
    "div",
    { class: "overlay", data: { testid: "overlay" }, style: { aspectRatio: `${image.width} / ${image.height}` } },
    layers,
    grid,
  );
  const on = (event, f) =>
    grid.addEventListener(event, (given) => indexOf.has(given.target) && f(indexOf.get(given.target)));
  let chosen = null;
  let stop = 0;
  let present = null;
  let looks = { opacity: 0.65, smooth: false };
  on("pointerover", onEnter);
  on("click", onPick);
  on("focusin", (index) => {
    patches[stop].tabIndex = -1;
    patches[(stop = index)].tabIndex = 0;
    if (patches[index].matches(":focus-visible")) onEnter(index);
  });
  grid.addEventListener("pointerleave", () => onEnter(null));

  function paint() {
    const brush = cover.getContext("2d");
    const largest = strongestOf(present);
    const fine = looks.smooth ? Math.max(1, Math.floor(FINE / Math.max(image.columns, image.rows))) : 1;
    const weights = present ? refined(present, image.columns, image.rows, fine) : new Float32Array(count * fine * fine);
    cover.width = image.columns * fine;
    cover.height = image.rows * fine;
    const pixels = brush.createImageData(cover.width, cover.height);
    const words = new Uint32Array(pixels.data.buffer);
    for (let index = 0; index < words.length; index += 1)
      words[index] = rampOf()[Math.round(255 * Math.min(1, Math.max(0, weights[index] / (largest || 1))))];
    brush.putImageData(pixels, 0, 0);
    cover.style.opacity = String(present ? looks.opacity : 0);
    cover.classList.toggle("smooth", looks.smooth);
  }

  return {
    element,
    patches,
    strongest: () => strongestOf(present),
    show(weights, next = looks) {
      present = weights;
      looks = next;
      paint();
    },
    repaint: paint,
    choose(index, pinned = false) {
      if (chosen !== null) patches[chosen].classList.remove("chosen", "pinned");
      chosen = index !== null && index >= 0 && index < count ? index : null;
      if (chosen === null) return;
      patches[chosen].classList.add("chosen");
      patches[chosen].classList.toggle("pinned", pinned);
    },
    onKey(event) {
      const index = patches.findIndex((patch) => patch.matches(":focus"));
      if (index < 0) return false;
      const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -image.columns, ArrowDown: image.columns }[event.key];
      if (by !== undefined) {
        const next = index + by;
        const wraps = Math.abs(by) === 1 && Math.floor(next / image.columns) !== Math.floor(index / image.columns);
        if (next >= 0 && next < count && !wraps) patches[next].focus();
      } else if (event.key === "Enter" || event.key === " ") onPick(index);
      else return false;
      return true;
    },
    /** The legend of the colours, with the numbers of what is shown now. */
    legend() {
      const bar = h("canvas", { class: "legend-bar", width: 200, height: 1, "aria-hidden": "true" });
      const brush = bar.getContext("2d");
      // As on the picture: the colours lie over grey with the same opacity.
      brush.fillStyle = "rgb(128, 128, 128)";
      brush.fillRect(0, 0, 200, 1);
      brush.globalAlpha = looks.opacity;
      for (let x = 0; x < 200; x += 1) {
        brush.fillStyle = `rgb(${barColor(x / 199, "linear", "dark").join(", ")})`;
        brush.fillRect(x, 0, 1, 1);
      }
      const largest = strongestOf(present);
      const marks = [0, 0.5, 1].map((fraction) =>
        h("span", { class: "legend-mark", style: { left: `${100 * fraction}%` } }, weightText(fraction * largest)),
      );
      return h(
        "div",
        {
          class: "legend",
          role: "img",
          "aria-label": "attention weight, from none to the strongest patch",
          data: { testid: "legend" },
        },
        bar,
        h("div", { class: "legend-marks" }, marks),
      );
    },
  };
}

/** "row 3, column 5", counted from 0; a picture cut into rows only has no columns. */
export function patchText(image, index) {
  const [row, column] = [Math.floor(index / image.columns), index % image.columns];
  return image.columns === 1 ? `row ${row}` : image.rows === 1 ? `column ${column}` : `row ${row}, column ${column}`;
}

/** A picture of a few pixels keeps them sharp. */
export function pictureClass(image, name) {
  return Math.max(image.width, image.height) < TINY ? `${name} tiny` : name;
}

function strongestOf(weights) {
  let largest = 0;
  for (const weight of weights || []) if (weight > largest) largest = weight;
  return largest;
}

const ramp = [];

/** The dark theme's ramp in both themes: patches with little weight are darkened. */
function rampOf() {
  if (!ramp.length) {
    const bytes = new Uint8Array(1024);
    for (let step = 0; step < 256; step += 1) bytes.set([...barColor(step / 255, "linear", "dark"), 255], 4 * step);
    ramp.push(...new Uint32Array(bytes.buffer));
  }
  return ramp;
}

/** Weights between the middles of patches by cubics through them (the weights are mixed, not their colours). */
function refined(weights, columns, rows, fine) {
  if (fine === 1) return weights;
  const wide = stretched(weights, rows, columns, columns, 1, fine);
  return stretched(wide, columns * fine, rows, 1, columns * fine, fine);
}

/** Stretch `lines` lines of `count` numbers; `line` and `step` are the distances between lines and between numbers. */
function stretched(from, lines, count, line, step, fine) {
  const across = step === 1;
  const to = new Float32Array(from.length * fine);
  for (let index = 0; index < lines; index += 1) {
    const at = (fraction) => from[index * line + Math.min(count - 1, Math.max(0, fraction)) * step];
    for (let fineAt = 0; fineAt < count * fine; fineAt += 1) {
      const x = (fineAt + 0.5) / fine - 0.5;
      const low = Math.floor(x);
      const t = x - low;
      const [a, b, c, d] = [at(low - 1), at(low), at(low + 1), at(low + 2)];
      const value = b + 0.5 * t * (c - a + t * (2 * a - 5 * b + 4 * c - d + t * (3 * (b - c) + d - a)));
      to[across ? index * count * fine + fineAt : fineAt * lines + index] = value;
    }
  }
  return to;
}
