// Word alignment of source and target: a matrix with marks, or two rows of words with ribbons.

import { h, fill } from "../dom.js";
import { headCount } from "../availability.js";
import { WHOSE, whoseCells, whoseText } from "../naming.js";
import { tokenText, weightText } from "../formatting.js";
import { createMap, mapOfRows } from "./map.js";
import { allRows, extentOf } from "./positions.js";
import { choice, newest, optionsOf, optionsText, readout } from "./components.js";
import { createRibbons } from "./ribbons.js";
import { labelsOf } from "./text.js";
import { traced } from "./page-drawing.js";

const USUAL = { form: "matrix", how: "head", marks: "all" };
const FORM = [
  ["matrix", "Matrix"],
  ["ribbons", "Ribbons", "Two rows of words, joined by what one attends to in the other"],
];
const HOW = [
  ["head", "This head"],
  ["mean", "Mean of layer"],
];
const MARKS = [
  ["all", "Marks"],
  ["none", "No marks"],
];
const ALLOWED = { form: ["matrix", "ribbons"], how: ["head", "mean"], marks: ["all", "none"] };
const MOST = 400; // positions a side that are readable
const MOST_ROWS = 1200; // rows requested one by one

export const alignmentView = {
  name: "alignment",
  label: "Alignment",
  key: "6",
  calls: false,
  keys: [
    ["m", "head, mean of layer"],
    ["d", "matrix, ribbons"],
    ["b", "marks, no marks"],
    ["← → ↑ ↓", "in the matrix: cell by cell"],
  ],
  available: (scene) => crossing(scene).length > 0,
  create,
};

/** Sites that attend from one text to another. */
function crossing(scene) {
  const words = (kind) => ["tokens", "targets", "read"].includes(kind);
  return scene.sites.flatMap((site, index) => {
    const { queries, keys } = extentOf(site);
    const named = scene.alignment && scene.alignment.site === index;
    return (named || (site.rows !== site.columns && words(site.rows) && words(site.columns))) &&
      queries <= MOST &&
      keys <= MOST
      ? [index]
      : [];
  });
}

function create({ scene, source, store, palette }) {
  const sites = crossing(scene);
  const gold = scene.alignment;
  const ask = newest();
  const options = () => optionsOf(store.get().v, USUAL, ALLOWED);
  const set = (patch) => store.set({ v: optionsText({ ...options(), ...patch }, USUAL) });
  const pickers = {
    form: choice({ label: "Form", options: FORM, testid: "form", onChange: (form) => set({ form }) }),
    how: choice({ label: "Whose weights", options: HOW, testid: "how", onChange: (how) => set({ how }) }),
    marks: choice({ label: "Marks", options: MARKS, testid: "marks", onChange: (marks) => set({ marks }) }),
  };
  const said = readout("alignment-readout", "");
  const map = createMap({
    title: "Target words down, source words across",
    testid: "alignment-matrix",
    onCell: (cell) => point(cell && cell.row, cell && cell.column),
  });
  const ribbons = createRibbons({ palette, onWord: (side, index) => pointWord(side, index) });
  const key = h("div", { class: "mark-key" });
  const holder = h("div", { class: "alignment-body" });
  const element = h(
    "div",
    { class: "sheet alignment-view" },
    h(
      "div",
      { class: "controls", data: { trace: "skip" } },
      pickers.form.element,
      pickers.how.element,
      pickers.marks.element,
    ),
    said.element,
    key,
    holder,
  );
  let state = store.get();
  let shown = null; // {weights: [row][column], rows, columns, links}

  /** The links that were extracted, or the strongest source word of each target word. */
  function linksOf(weights) {
    if (gold && gold.site === state.site && gold.pairs && gold.pairs.length)
      return gold.pairs.map(([column, row]) => [row, column]);
    return weights.map((line, row) => [
      row,
      line.reduce((best, weight, column) => (weight > line[best] ? column : best), 0),
    ]);
  }

  /** The mean needs every row of every head: only for sentences. */
  function affordable() {
    const site = scene.sites[state.site];
    return extentOf(site).queries * headCount(site, state.variant) <= MOST_ROWS;
  }

  function mode() {
    return affordable() ? options().how : "head";
  }

  function look() {
    const site = scene.sites[state.site];
    const { queries, keys } = extentOf(site);
    ask(
      () => allRows(source, scene, state, mode()),
      (weights) => {
        shown = {
          weights,
          rows: labelsOf(scene, state.variant, site.rows, queries),
          columns: labelsOf(scene, state.variant, site.columns, keys),
          links: linksOf(weights),
        };
        paint();
      },
      (words) => {
        shown = null;
        map.say(words);
        fill(holder, map.element);
        said.say(words);
      },
    );
  }

  function paint() {
    const { form, marks } = options();
    fill(key, marks === "all" ? legend() : null);
    if (form === "ribbons") {
      fill(holder, ribbons.element);
      ribbons.show(shown, marks === "all" ? shown.links : []);
    } else {
      fill(holder, map.element);
      const [height, width] = [shown.weights.length, shown.columns.length];
      // Cells of a readable size for short sentences, the window's width at most for long ones.
      map.limit(width * Math.min(38, Math.max(14, 620 / Math.max(width, height))));
      map.show(mapOfRows(shown.weights, width, palette.codeOf), palette.table(), {
        rows: shown.rows,
        columns: shown.columns,
      });
      map.mark(marks === "all" ? marked() : []);
    }
    said.say(summary());
  }

  function marked() {
    const { sure, possible } = references();
    const inside = ([row, column]) => row < shown.rows.length && column < shown.columns.length;
    const at =
      (name, testid) =>
      ([row, column]) =>
        map.markAt(
          row,
          column,
          { class: `mark ${name}`, data: testid ? { testid: `pair-${row}-${column}` } : {} },
          h("span"),
        );
    const certain = new Set(sure.map(String));
    return [
      ...possible.filter((pair) => inside(pair) && !certain.has(String(pair))).map(at("possible", false)),
      ...sure.filter(inside).map(at("sure", false)),
      ...shown.links.filter(inside).map(at("link", true)),
    ];
  }

  /** Gold marks as [row, column]; the scene counts (source, target). */
  function references() {
    const turned = (pairs) =>
      gold && gold.site === state.site && pairs ? pairs.map(([column, row]) => [row, column]) : [];
    return { sure: turned(gold && gold.sure), possible: turned(gold && gold.possible) };
  }

  function legend() {
    const { sure, possible } = references();
    const extracted = gold && gold.site === state.site && gold.pairs ? "extracted link" : "strongest of its row";
    const entry = (name, words) =>
      h("span", { class: "mark-entry" }, h("span", { class: `mark ${name}` }, h("span")), words);
    if (options().form === "ribbons") return entry("edge", extracted);
    return [
      entry("link", extracted),
      sure.length ? entry("sure", "gold, sure") : null,
      possible.length ? entry("possible", "gold, possible") : null,
    ];
  }

  function summary() {
    const whose = whoseText(scene, state, mode());
    const error =
      gold && gold.site === state.site && gold.aer !== null && gold.aer !== undefined
        ? `   ·   alignment error rate ${gold.aer.toFixed(3)} against the gold links`
        : "";
    return `${whose}${error}`;
  }

  function point(row, column) {
    if (!shown || row === null) return said.say(summary());
    return said.say(
      `“${tokenText(shown.rows[row], 30)}” looks at “${tokenText(shown.columns[column], 30)}” with ${weightText(shown.weights[row][column])}`,
    );
  }

  function pointWord(side, index) {
    if (index === null) return said.say(summary());
    const list =
      side === "row"
        ? Array.from(shown.weights[index], (weight, other) => [weight, shown.columns[other]])
        : shown.weights.map((line, other) => [line[index], shown.rows[other]]);
    const best = list
      .sort((a, b) => b[0] - a[0])
      .slice(0, 3)
      .map(([weight, word]) => `“${tokenText(word, 24)}” ${weightText(weight)}`);
    return said.say(
      `“${tokenText(side === "row" ? shown.rows[index] : shown.columns[index], 30)}” ${side === "row" ? "looks at" : "is looked at by"} ${best.join(", ")}`,
    );
  }

  return {
    element,
    update(next) {
      state = next;
      if (!sites.includes(state.site)) {
        queueMicrotask(() =>
          store.set({ site: gold && sites.includes(gold.site) ? gold.site : sites.at(-1), row: null, key: null }),
        );
        return;
      }
      const now = options();
      for (const [part, picker] of Object.entries(pickers)) picker.set(now[part]);
      pickers.how.element.hidden = headCount(scene.sites[state.site], state.variant) < 2 || !affordable();
      look();
    },
    onKey(event) {
      if (options().form === "matrix" && map.onKey(event)) return true;
      const now = options();
      const turn = (part) =>
        set({ [part]: ALLOWED[part][(ALLOWED[part].indexOf(now[part]) + 1) % ALLOWED[part].length] });
      if (event.key === "m") turn("how");
      else if (event.key === "d") turn("form");
      else if (event.key === "b") turn("marks");
      else return false;
      return true;
    },
    difference: () => false,
    drawing: () => traced(element, palette),
    subject: () => whoseText(scene, state, mode()),
    table: () =>
      shown && {
        head: [...WHOSE, "row", "target", ...shown.columns.map((word, column) => `${column} ${word}`)],
        rows: shown.weights.map((line, row) => [...whoseCells(scene, state, mode()), row, shown.rows[row], ...line]),
      },
    destroy: () => ask.forget(),
  };
}
