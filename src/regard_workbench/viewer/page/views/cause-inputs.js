// Which inputs count: integrated gradients and gradient × input beside attention, and how far the methods agree.

import { h } from "../dom.js";
import { tokenText } from "../formatting.js";
import { askedSection, heatTable, signed } from "./cause-heat.js";

/** Scores of the tokens or pixels by several methods. */
export function inputSection({ scene, palette, causes }) {
  const show = (result) => {
    const methods = Object.entries(result.scores);
    const patches = onPicture(scene.image, methods);
    return [
      h("p", { class: "said", data: { testid: "completeness" } }, completeness(result)),
      result.grid || patches ? h("div", { class: "cause-grids" }, methods.map(([name, scores]) => picture(name, patches ? scores.slice(patches.skip) : scores, patches ? [patches.rows, patches.columns] : result.grid))) : table(result, methods),
      h("p", { class: "quiet" }, `Rank correlation: ${result.agreement.map(({ methods: pair, rank_correlation: value }) => `${pair.join(" and ")} ${value === null ? "not defined" : plus(value)}`).join("; ") || "only one method"}.`),
      result.missing.length ? h("p", { class: "quiet" }, `Without ${result.missing.map((why) => why.replace(/\.$/, "")).join("; ")}.`) : null,
    ];
  };
  const coloured = (value, largest, title) => ({ text: signed((value / largest).toFixed(2)), title, background: palette.effectCss(value / largest), color: palette.effectInk(value / largest) });

  /** Methods × tokens; each method relative to its own largest score. */
  function table(result, methods) {
    const columns = methods[0][1].map((_, position) => tokenText((result.tokens || [])[position] ?? String(position), 14));
    const most = methods.map(([, scores]) => largestOf(scores));
    const cell = (value, row, column) => value === null ? null : coloured(value, most[row], `${methods[row][0]}, “${columns[column]}”: ${signed(value.toPrecision(3))}`);
    return heatTable({ label: "Scores of the inputs", columns, turned: true, rows: methods, cell });
  }

  function picture(name, scores, [height, width]) {
    const most = largestOf(scores);
    const rows = Array.from({ length: height }, (_, row) => ["", scores.slice(row * width, (row + 1) * width)]);
    const cell = (value) => value === null ? null : { ...coloured(value, most, signed(value.toPrecision(3))), text: "" };
    return h("figure", { class: "map" }, h("figcaption", {}, name), heatTable({ label: name, columns: Array.from({ length: width }, () => ""), rows, cell }));
  }

  const section = askedSection({
    title: "Which inputs count?", testid: "inputs", busy: "taking gradients …", button: "Score the inputs",
    words: "Integrated gradients and gradient × input of the answer, beside attention of the last layer and rollout. Each row is relative to its largest score; methods often disagree.",
    ask: () => causes.ask({ by: "inputs" }), found: () => causes.found({ by: "inputs" }), show,
  });
  return {
    ...section,
    table() {
      const result = causes.found({ by: "inputs" });
      if (!result) return null;
      const methods = Object.entries(result.scores);
      return { head: ["position", "input", ...methods.map(([name]) => name)], rows: methods[0][1].map((_, position) => [position, (result.tokens || [])[position] ?? "", ...methods.map(([, scores]) => scores[position] ?? "")]) };
    },
  };
}

/** The page’s picture, where the scores are of its patches. */
function onPicture(image, methods) {
  return image && methods.every(([, scores]) => scores.length === image.rows * image.columns + image.skip) ? image : null;
}

function completeness({ measured, value, baseline, gap }) {
  const span = value - baseline;
  const share = span ? ` (${Math.abs((100 * gap) / span).toFixed(1)}\u00a0%)` : "";
  return `${measured}: ${signed(value.toFixed(3))}, without information ${signed(baseline.toFixed(3))}. Completeness gap of integrated gradients: ${signed(gap.toPrecision(2))}${share}.`;
}

function largestOf(scores) {
  return scores.reduce((most, value) => Math.max(most, Math.abs(value ?? 0)), 0) || 1;
}

function plus(value) {
  return `${value > 0 ? "+" : ""}${signed(value.toFixed(2))}`;
}
