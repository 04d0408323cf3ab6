// A small curve over training steps, with a selectable dot for each checkpoint.

import { h, fill, s } from "../dom.js";

const WIDE = 340;
const HIGH = 150;
const EDGE = { left: 46, right: 14, top: 14, bottom: 22 };

/** `show(values)` with null for unknown values; `choose(index)`. `share`: the axis runs from 0 to 1, in per cent. */
export function createCurve({ title, xs, values, share = false, onPick, testid }) {
  const picture = s("svg", { width: WIDE, height: HIGH, role: "img", "aria-label": title, data: { testid } });
  const element = h("section", { class: "curve" }, h("h3", {}, title), picture);
  let dots = [];
  let chosen = null;
  const span = Math.max(1e-9, xs.at(-1) - xs[0]);
  const x = (index) => EDGE.left + ((xs[index] - xs[0]) / span) * (WIDE - EDGE.left - EDGE.right);
  const text = (value) => (share ? `${Math.round(100 * value)} %` : String(Number(value.toPrecision(3))));

  function show(next) {
    const known = next.filter(Number.isFinite);
    if (!known.length) return fill(picture);
    const low = share ? 0 : Math.min(...known);
    const high = share ? Math.max(0.05, ...known) : Math.max(...known);
    const y = (value) =>
      HIGH - EDGE.bottom - ((value - low) / Math.max(1e-12, high - low)) * (HIGH - EDGE.top - EDGE.bottom);
    const points = next.flatMap((value, index) => (Number.isFinite(value) ? [[x(index), y(value)]] : []));
    const way = points.map(([px, py], index) => `${index ? "L" : "M"}${px.toFixed(1)} ${py.toFixed(1)}`).join(" ");
    const axis = [low, high].map((value) => [
      s("line", { x1: EDGE.left, x2: WIDE - EDGE.right, y1: y(value), y2: y(value), class: "curve-line" }),
      s("text", { x: EDGE.left - 6, y: y(value) + 4, "text-anchor": "end", class: "curve-text" }, text(value)),
    ]);
    const ends = [
      [0, "start"],
      [xs.length - 1, "end"],
    ].map(([index, anchor]) =>
      s("text", { x: x(index), y: HIGH - 6, "text-anchor": anchor, class: "curve-text" }, String(xs[index])),
    );
    dots = next.map((value, index) =>
      Number.isFinite(value)
        ? s(
            "circle",
            { cx: x(index), cy: y(value), r: 4, class: "curve-dot", on: { click: () => onPick(index) } },
            s("title", {}, `${xs[index]}: ${text(value)}`),
          )
        : null,
    );
    fill(picture, axis, ends, s("path", { d: way, class: "curve-path" }), dots);
    return choose(chosen);
  }

  function choose(index) {
    chosen = index;
    dots.forEach((dot, at) => dot && dot.classList.toggle("here", at === index));
  }

  show(values);
  return { element, show, choose };
}
