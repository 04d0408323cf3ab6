// Shared parts of saved figures: colours, legend, maps as canvases.

import { linesOf, textWidth } from "./marks.js";
import { barColor, css, tickPlace, tickText, ticks } from "./palette.js";

/** Colours of a saved figure, from the current theme. */
export function figureColors(palette) {
  if (palette.theme() === "dark") return { ink: "#eceae4", soft: "#aeb0b6", line: "#474b55", paper: "#14161b", accent: "#ff9d5c" };
  return { ink: "#1b1d22", soft: "#5c6069", line: "#c9c8c2", paper: "#ffffff", accent: "#c2410c" };
}

const TITLE = { size: 14, bold: true };
const BELOW = { size: 10 };
const EDGE = 16;

/**
 * A title and text below it, not truncated: `{width, height, add(drawing)}`. `wide`: how wide the picture is without
 * them; words wrap there, and only a single long word makes it wider.
 */
export function headingOf(title, words, wide, palette) {
  const colors = figureColors(palette);
  const upper = linesOf(title, wide - 2 * EDGE, TITLE);
  const lower = words ? linesOf(words, wide - 2 * EDGE, BELOW) : [];
  const widest = [...upper.map((line) => textWidth(line, TITLE)), ...lower.map((line) => textWidth(line, BELOW))];
  return {
    width: Math.max(wide, Math.ceil(Math.max(...widest)) + 2 * EDGE),
    height: 8 + 18 * upper.length + 14 * lower.length,
    add(drawing) {
      upper.forEach((line, index) => drawing.text(EDGE, 26 + 18 * index, line, { ...TITLE, fill: colors.ink }));
      lower.forEach((line, index) => drawing.text(EDGE, 24 + 18 * upper.length + 14 * index, line, { ...BELOW, fill: colors.soft }));
    },
  };
}

/** A legend with numbers into a drawing, its bar's upper left corner at (x, y); about 30 pixels high. */
export function addLegend(drawing, x, y, palette, difference = false, width = 180) {
  const { soft } = figureColors(palette);
  const parts = 60;
  for (let part = 0; part < parts; part += 1) {
    // Neighbours overlap slightly, because renderers would show gaps between them.
    const wide = part + 1 < parts ? width / parts + 0.4 : width / parts;
    drawing.rect(x + (part * width) / parts, y, wide, 8, { fill: css(barColor((part + 0.5) / parts, palette.scale(), palette.theme(), difference)) });
  }
  for (const value of ticks(palette.scale(), difference)) {
    const at = x + width * tickPlace(value, palette.scale(), difference);
    drawing.text(at, y + 20, tickText(value, palette.scale(), difference), { size: 9, fill: soft, anchor: "middle" });
  }
}

/** Codes as a canvas in the colours of a table of 256 RGBA values. */
export function codesCanvas(codes, width, height, table, canvas = document.createElement("canvas")) {
  canvas.width = width;
  canvas.height = height;
  const colors = new Uint32Array(table.buffer, table.byteOffset, 256);
  const picture = new ImageData(width, height);
  const pixels = new Uint32Array(picture.data.buffer);
  for (let index = 0; index < pixels.length; index += 1) pixels[index] = colors[codes[index]];
  canvas.getContext("2d").putImageData(picture, 0, 0);
  return canvas;
}
