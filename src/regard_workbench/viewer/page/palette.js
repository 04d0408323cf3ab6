// Colours of weights and differences, and their legends.
// Every ramp is even in OKLab lightness, so it stays ordered for colour-blind readers and in grey print.

import { h } from "./dom.js";
import { weightText, differenceText } from "./formatting.js";

const FLOOR = 1e-4;
const SEQUENTIAL = {
  // [lightness, chroma, hue] from the smallest weight to 1; the background means exactly 0 or hidden.
  light: [[0.962, 0.018, 165], [0.86, 0.075, 178], [0.7, 0.105, 205], [0.53, 0.125, 243], [0.38, 0.13, 268], [0.24, 0.09, 285]],
  dark: [[0.235, 0.03, 275], [0.36, 0.1, 272], [0.52, 0.125, 245], [0.68, 0.11, 205], [0.83, 0.11, 160], [0.965, 0.09, 110]],
};
const PAPER = { light: [255, 255, 255], dark: [20, 22, 27] };
const GROUND = { light: [250, 250, 248], dark: [25, 27, 33] };
const DIVERGING = {
  light: { middle: [0.97, 0.0, 0], plus: [[0.8, 0.1, 60], [0.62, 0.155, 50], [0.42, 0.12, 42]], minus: [[0.8, 0.07, 235], [0.6, 0.12, 250], [0.4, 0.125, 262]] },
  dark: { middle: [0.23, 0.006, 275], plus: [[0.45, 0.1, 48], [0.66, 0.15, 58], [0.9, 0.1, 80]], minus: [[0.44, 0.1, 258], [0.64, 0.12, 245], [0.88, 0.07, 220]] },
};

/** The weight of an 8-bit code (0 = exactly zero or hidden). */
export function weightOf(code) {
  return code === 0 ? 0 : 10 ** ((6 * (code - 255)) / 254);
}

/** The nearest code of a weight. */
export function codeOf(weight) {
  if (!(weight > 0)) return 0;
  return Math.min(255, Math.max(1, Math.round(255 + (254 * Math.log10(weight)) / 6)));
}

/** The difference of a code: 128 is 0. */
export function differenceOf(code) {
  const steps = Math.min(127, Math.abs(code - 128));
  return steps === 0 ? 0 : Math.sign(code - 128) * 10 ** ((4 * (steps - 127)) / 126);
}

/** The nearest code of a difference; below 1e-4 it is 0. */
export function differenceCode(value) {
  const size = Math.min(1, Math.abs(value));
  if (!(size >= FLOOR)) return 128;
  return 128 + Math.sign(value) * Math.max(1, Math.round(127 + (126 * Math.log10(size)) / 4));
}

/** Where a weight lies on a scale's ramp, 0…1. */
export function placeOf(weight, scale) {
  if (scale === "linear") return Math.min(1, weight);
  if (scale === "root") return Math.sqrt(Math.min(1, weight));
  return Math.min(1, Math.max(0, 1 + Math.log10(Math.max(weight, FLOOR)) / 4));
}

/** The colour of a weight's code. */
export function color(code, scale, theme) {
  const table = texture(scale, theme);
  return [table[4 * code], table[4 * code + 1], table[4 * code + 2]];
}

/** The colour of a difference's code. */
export function differenceColor(code, theme = "light") {
  const table = differenceTexture(theme);
  return [table[4 * code], table[4 * code + 1], table[4 * code + 2]];
}

/** All 256 colours of a scale as RGBA bytes. */
export function texture(scale, theme) {
  return kept(`${scale} ${theme}`, (code) => {
    if (code === 0) return PAPER[theme];
    return mixed(SEQUENTIAL[theme], placeOf(weightOf(code), scale));
  });
}

/** All 256 colours of differences as RGBA bytes. */
export function differenceTexture(theme) {
  const { middle, plus, minus } = DIVERGING[theme];
  return kept(`difference ${theme}`, (code) => {
    const value = differenceOf(code);
    return mixed([middle, ...(value < 0 ? minus : plus)], Math.cbrt(Math.abs(value)));
  });
}

/** "rgb(…)" for styles and drawings. */
export function css(rgb) {
  return `rgb(${rgb[0]}, ${rgb[1]}, ${rgb[2]})`;
}

/** The background colour: exactly 0 or hidden. */
export function paper(theme) {
  return PAPER[theme];
}

/** The page's colour around a map. */
export function ground(theme) {
  return GROUND[theme];
}

/** Numbers at which a legend is marked. `difference`: true for differences of weights, "effect" for shares of an answer. */
export function ticks(scale, difference = false) {
  if (difference === "effect") return [-1, -0.5, 0, 0.5, 1];
  if (difference) return [-1, -0.1, 0, 0.1, 1];
  return { log: [1e-4, 1e-3, 0.01, 0.1, 1], root: [0, 0.01, 0.1, 0.3, 0.6, 1], linear: [0, 0.25, 0.5, 0.75, 1] }[scale];
}

/** The position of a legend's number along its bar, 0…1. */
export function tickPlace(value, scale, difference = false) {
  if (difference === "effect") return (1 + value) / 2;
  return difference ? (1 + Math.sign(value) * Math.cbrt(Math.abs(value))) / 2 : placeOf(value, scale);
}

/** The text beside a legend's tick. */
export function tickText(value, scale, difference = false) {
  if (difference) return value ? differenceText(value).replace(/\.?0+$/, "") : "0";
  const text = value >= 0.1 || value === 0 ? String(value) : weightText(value).replace(/(\.\d*?)0+$/, "$1");
  return scale === "log" && value === FLOOR ? `< ${text}` : text;
}

/** The colour at a position of the legend's bar. */
export function barColor(fraction, scale, theme, difference = false) {
  if (!difference) return mixed(SEQUENTIAL[theme], fraction);
  const { middle, plus, minus } = DIVERGING[theme];
  return mixed([middle, ...(fraction < 0.5 ? minus : plus)], Math.abs(2 * fraction - 1));
}

/** The colour of an effect from −1 to 1: evenly, so that what is next to nothing looks like nothing. */
function effectColor(value, theme) {
  return barColor((1 + Math.min(1, Math.max(-1, value))) / 2, "linear", theme, "effect");
}

/** A bar with numbers. */
export function legend(scale, { theme = "light", difference = false } = {}) {
  const width = 200;
  const bar = h("canvas", { class: "legend-bar", width, height: 1, "aria-hidden": "true" });
  const paint = bar.getContext("2d");
  for (let x = 0; x < width; x += 1) {
    paint.fillStyle = css(barColor(x / (width - 1), scale, theme, difference));
    paint.fillRect(x, 0, 1, 1);
  }
  const marks = ticks(scale, difference).map((value) =>
    h("span", { class: "legend-mark", style: { left: `${100 * tickPlace(value, scale, difference)}%` } }, tickText(value, scale, difference)),
  );
  const what = difference === "effect" ? "effect on the answer" : difference ? "difference of weights" : "attention weight";
  const even = { log: "logarithmic", root: "square root", linear: "linear" }[difference === "effect" ? "linear" : scale];
  const words = `${what}, ${difference === true ? "signed cube root" : even} scale`;
  return h("div", { class: "legend", role: "img", "aria-label": words, title: words, data: { testid: "legend" } }, bar, h("div", { class: "legend-marks" }, marks));
}

/** The palette a view gets: the functions above, bound to the current theme and scale. */
export function createPalette(theme, scale) {
  return {
    theme,
    scale,
    rgb: (code) => color(code, scale(), theme()),
    css: (weight) => css(color(codeOf(weight), scale(), theme())),
    table: () => texture(scale(), theme()),
    differenceRgb: (code) => differenceColor(code, theme()),
    differenceCss: (value) => css(differenceColor(differenceCode(value), theme())),
    differenceTable: () => differenceTexture(theme()),
    paper: () => css(PAPER[theme()]),
    /** A text colour that is readable on a weight's colour. */
    ink: (weight) => inkOn(color(codeOf(weight), scale(), theme())),
    differenceInk: (value) => inkOn(differenceColor(differenceCode(value), theme())),
    effectCss: (value) => css(effectColor(value, theme())),
    effectInk: (value) => inkOn(effectColor(value, theme())),
    legend: (difference = false) => legend(scale(), { theme: theme(), difference }),
    weightOf,
    codeOf,
    differenceOf,
    differenceCode,
  };
}

const tables = new Map();

function kept(name, rgbOf) {
  if (!tables.has(name)) {
    const table = new Uint8Array(1024);
    for (let code = 0; code < 256; code += 1) table.set([...rgbOf(code), 255], 4 * code);
    tables.set(name, table);
  }
  return tables.get(name);
}

/** Black or white text, whichever has more contrast as WCAG counts it. */
function inkOn(rgb) {
  const [r, g, b] = rgb.map((part) => (part <= 10 ? part / 3294 : ((part / 255 + 0.055) / 1.055) ** 2.4));
  const light = 0.2126 * r + 0.7152 * g + 0.0722 * b;
  return (light + 0.05) / 0.05 > 1.05 / (light + 0.05) ? "#000000" : "#ffffff";
}

/** A colour between the stops of a ramp, mixed in OKLab so that lightness changes evenly. */
function mixed(stops, fraction) {
  const at = Math.min(Math.max(fraction, 0), 1) * (stops.length - 1);
  const low = Math.min(stops.length - 2, Math.floor(at));
  const part = at - low;
  const from = lab(stops[low]);
  const to = lab(stops[low + 1]);
  return rgb(from.map((value, index) => value + part * (to[index] - value)));
}

function lab([lightness, chroma, hue]) {
  const angle = (hue * Math.PI) / 180;
  return [lightness, chroma * Math.cos(angle), chroma * Math.sin(angle)];
}

function rgb([lightness, a, b]) {
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const t = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const linear = [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * t,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * t,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * t,
  ];
  return linear.map((value) => {
    const inside = Math.min(1, Math.max(0, value));
    return Math.round(255 * (inside <= 0.0031308 ? 12.92 * inside : 1.055 * inside ** (1 / 2.4) - 0.055));
  });
}
