// Draws a view as a figure from its elements on the page: boxes, texts, lines and images at their positions, so that the
// saved figure is what is on the screen and views need no second description.
// `data-trace="skip"` leaves a part out (controls), `data-trace="flat"` makes one picture of the pictures inside,
// `data-trace="bare"` leaves out the background of a part.

import { Drawing } from "../drawing.js";
import { addLegend } from "../figure.js";

const MARGIN = 16;
const LEGEND = 36;
const FLAT_SCALE = 2;

/** A drawing of an element and everything in it, with the legend of its colours below (`difference`: of differences). */
export function traced(element, palette, { legend = true, difference = false } = {}) {
  element.classList.add("tracing"); // tables that scroll are spread out
  const box = element.getBoundingClientRect();
  const width = Math.max(box.width, element.scrollWidth) + 2 * MARGIN;
  const height = Math.max(box.height, element.scrollHeight) + 2 * MARGIN;
  const drawing = new Drawing(Math.ceil(width), Math.ceil(height + (legend ? LEGEND : 0)), palette.paper());
  visit(element, { drawing, left: box.left - MARGIN, top: box.top - MARGIN }, 1);
  element.classList.remove("tracing");
  if (legend) addLegend(drawing, 2 * MARGIN, Math.ceil(height), palette, difference);
  return cropped(drawing);
}

/** Without the empty space of controls at the top. */
function cropped(drawing) {
  const topOf = (mark) =>
    mark.kind === "path"
      ? Math.min(...mark.commands.flatMap(([, ...at]) => at.filter((_, index) => index % 2)))
      : mark.kind === "text"
        ? mark.y - (mark.style.size || 12)
        : mark.y;
  const empty = Math.floor(
    drawing.marks.reduce((least, mark) => Math.min(least, topOf(mark)), drawing.height) - MARGIN,
  );
  return empty > 0
    ? new Drawing(drawing.width, drawing.height - empty, drawing.background).add(drawing, 0, -empty)
    : drawing;
}

function visit(element, to, opacity) {
  if (element.dataset.trace === "skip" || element.hidden) return;
  const looks = getComputedStyle(element);
  if (looks.display === "none" || looks.visibility === "hidden") return;
  const seen = opacity * Number(looks.opacity);
  if (seen < 0.02) return;
  if (element.tagName === "svg") return svg(element, to, seen);
  const box = boxOf(element, to);
  if (element.dataset.trace === "flat")
    to.drawing.image(flattened(element), box.x, box.y, box.width, box.height, { smooth: true });
  else if (element.tagName === "IMG")
    to.drawing.image(flattened(element), box.x, box.y, box.width, box.height, { smooth: true });
  else if (element.tagName === "CANVAS")
    to.drawing.image(element, box.x, box.y, box.width, box.height, { smooth: looks.imageRendering !== "pixelated" });
  else {
    boxed(element, box, looks, to, seen);
    for (const child of element.childNodes) {
      if (child.nodeType === Node.TEXT_NODE) written(child, looks, to, seen);
      else if (child.nodeType === Node.ELEMENT_NODE) visit(child, to, seen);
    }
  }
}

const GAP = 3; // between a token's fill and the bar below it, as in the style sheet
const BAR = 4;

function boxed(element, box, looks, to, seen) {
  const shade = looks.getPropertyValue("--fill");
  const bar = looks.getPropertyValue("--bar");
  if (shade) to.drawing.rect(box.x, box.y, box.width, box.height - GAP - BAR, { fill: solid(shade)[0], opacity: seen });
  if (bar) to.drawing.rect(box.x, box.y + box.height - BAR, box.width, BAR, { fill: solid(bar)[0], opacity: seen });
  const [fill, alpha] = solid(looks.backgroundColor);
  if (looks.borderTopLeftRadius === "50%") {
    const width = parseFloat(looks.borderTopWidth);
    const ring = {
      fill: alpha ? fill : null,
      stroke: width ? solid(looks.borderTopColor)[0] : undefined,
      width,
      opacity: seen,
    };
    to.drawing.path(
      roundAt(box.x + box.width / 2, box.y + box.height / 2, (Math.min(box.width, box.height) - width) / 2),
      ring,
    );
    return;
  }
  if (alpha > 0 && element.dataset.trace !== "bare")
    to.drawing.rect(box.x, box.y, box.width, box.height, { fill, opacity: alpha * seen });
  const sides = { Top: [0, 0, 1, 0], Bottom: [0, 1, 1, 1], Left: [0, 0, 0, 1], Right: [1, 0, 1, 1] };
  for (const [side, [x1, y1, x2, y2]] of Object.entries(sides))
    lined(looks, `border${side}`, box, 0, [x1, y1, x2, y2], to, seen);
  if (looks.outlineStyle !== "none") {
    const out = parseFloat(looks.outlineOffset) + parseFloat(looks.outlineWidth) / 2;
    for (const ends of Object.values(sides)) lined(looks, "outline", box, out, ends, to, seen);
  }
}

function lined(looks, name, box, out, [x1, y1, x2, y2], to, seen) {
  const width = parseFloat(looks[`${name}Width`]);
  const [stroke, alpha] = solid(looks[`${name}Color`]);
  if (!(width > 0) || looks[`${name}Style`] === "none" || alpha === 0) return;
  // A border lies inside its box, an outline around it.
  const inset = name === "outline" ? -out : width / 2;
  const x = (end) => (end ? box.x + box.width - inset : box.x + inset);
  const y = (end) => (end ? box.y + box.height - inset : box.y + inset);
  const dash = looks[`${name}Style`] === "dashed" ? [3 * width, 2 * width] : undefined;
  to.drawing.line(x(x1), y(y1), x(x2), y(y2), { stroke, width, opacity: alpha * seen, dash });
}

function written(node, looks, to, seen) {
  if (!node.data.trim()) return;
  const size = parseFloat(looks.fontSize);
  const [fill, alpha] = solid(looks.color);
  const style = {
    size,
    fill,
    bold: Number(looks.fontWeight) >= 600,
    opacity: alpha * seen === 1 ? undefined : alpha * seen,
  };
  for (const { text, box } of linesOf(node)) {
    const x = box.left - to.left;
    const y = box.top - to.top;
    if (looks.writingMode.startsWith("vertical"))
      to.drawing.text(x + box.width / 2 + 0.35 * size, y + box.height, text, { ...style, rotate: -90 });
    else {
      // Fonts of the page and of the figure differ in width: text keeps its middle or its end where the page does.
      const anchor = { center: "middle", right: "end", end: "end" }[looks.textAlign] || "start";
      const at = { start: x, middle: x + box.width / 2, end: x + box.width }[anchor];
      to.drawing.text(at, y + box.height / 2 + 0.35 * size, text, { ...style, anchor });
    }
  }
}

function linesOf(node) {
  const range = document.createRange();
  range.selectNodeContents(node);
  const whole = Array.from(range.getClientRects()).filter((box) => box.width > 0);
  if (whole.length < 2) return whole.map((box) => ({ text: node.data.trim(), box }));
  const lines = [];
  for (const word of node.data.matchAll(/\S+/g)) {
    range.setStart(node, word.index);
    range.setEnd(node, word.index + word[0].length);
    const box = range.getBoundingClientRect();
    const line = lines.at(-1);
    if (line && Math.abs(line.box.top - box.top) < 2) line.text += ` ${word[0]}`;
    else lines.push({ text: word[0], box });
  }
  return lines;
}

function svg(element, to, seen) {
  const box = boxOf(element, to);
  for (const part of element.querySelectorAll("path, line, rect, circle, text")) {
    const looks = getComputedStyle(part);
    const opacity = seen * Number(looks.opacity);
    if (looks.display === "none" || looks.visibility === "hidden" || opacity < 0.02) continue;
    const [fill, fillAlpha] = looks.fill === "none" ? [null, 0] : solid(looks.fill);
    const [stroke, strokeAlpha] = looks.stroke === "none" ? [null, 0] : solid(looks.stroke);
    const dash = looks.strokeDasharray === "none" ? undefined : looks.strokeDasharray.split(/[ ,]+/).map(parseFloat);
    const style = {
      fill: fillAlpha ? fill : null,
      stroke: strokeAlpha ? stroke : undefined,
      width: parseFloat(looks.strokeWidth),
      opacity: opacity * (fillAlpha ? fillAlpha * Number(looks.fillOpacity) : strokeAlpha),
      dash,
    };
    const number = (name) => Number(part.getAttribute(name) || 0);
    if (part.tagName === "text") {
      const anchor = looks.textAnchor;
      to.drawing.text(box.x + number("x"), box.y + number("y"), part.textContent, {
        size: parseFloat(looks.fontSize),
        fill,
        anchor,
        bold: Number(looks.fontWeight) >= 600,
        opacity,
      });
    } else if (part.tagName === "path") to.drawing.path(commandsOf(part.getAttribute("d") || "", box), style);
    else if (part.tagName === "line")
      to.drawing.line(box.x + number("x1"), box.y + number("y1"), box.x + number("x2"), box.y + number("y2"), style);
    else if (part.tagName === "rect")
      to.drawing.rect(box.x + number("x"), box.y + number("y"), number("width"), number("height"), style);
    else to.drawing.path(roundAt(box.x + number("cx"), box.y + number("cy"), number("r")), style);
  }
}

/** Our paths hold only absolute M, L, C and Z. */
function commandsOf(way, box) {
  return Array.from(way.matchAll(/([MLCZ])([^MLCZ]*)/g), ([, name, rest]) => {
    const numbers = rest.split(/[ ,]+/).filter(Boolean).map(Number);
    return [name, ...numbers.map((value, index) => value + (index % 2 ? box.y : box.x))];
  });
}

function roundAt(x, y, r) {
  const c = 0.5523 * r;
  return [
    ["M", x + r, y],
    ["C", x + r, y + c, x + c, y + r, x, y + r],
    ["C", x - c, y + r, x - r, y + c, x - r, y],
    ["C", x - r, y - c, x - c, y - r, x, y - r],
    ["C", x + c, y - r, x + r, y - c, x + r, y],
    ["Z"],
  ];
}

/** Overlapping images, with their opacities, as one. */
function flattened(element) {
  const box = element.getBoundingClientRect();
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(FLAT_SCALE * box.width));
  canvas.height = Math.max(1, Math.round(FLAT_SCALE * box.height));
  const paint = canvas.getContext("2d");
  for (const part of element.tagName === "IMG" ? [element] : element.querySelectorAll("img, canvas")) {
    const looks = getComputedStyle(part);
    const at = part.getBoundingClientRect();
    if (!at.width || (part.tagName === "IMG" && !part.complete)) continue;
    paint.globalAlpha = Number(looks.opacity);
    paint.filter = looks.filter;
    paint.imageSmoothingEnabled = looks.imageRendering !== "pixelated";
    paint.drawImage(
      part,
      FLAT_SCALE * (at.left - box.left),
      FLAT_SCALE * (at.top - box.top),
      FLAT_SCALE * at.width,
      FLAT_SCALE * at.height,
    );
  }
  return canvas;
}

function boxOf(element, to) {
  const box = element.getBoundingClientRect();
  return { x: box.left - to.left, y: box.top - to.top, width: box.width, height: box.height };
}

const known = new Map();

/** Any CSS colour as [opaque "rgb(…)", alpha]: painted once and read back, whatever its notation. */
function solid(color) {
  if (!known.has(color)) {
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = 1;
    const paint = canvas.getContext("2d", { willReadFrequently: true });
    paint.fillStyle = color;
    paint.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = paint.getImageData(0, 0, 1, 1).data;
    known.set(color, [`rgb(${r}, ${g}, ${b})`, a / 255]);
  }
  return known.get(color);
}
