// Two models, checkpoints or inputs on the same head: A, B, and A − B, with one cursor for all three.

import { h, fill } from "../dom.js";
import { answered } from "../answer.js";
import { siteName, sitesOnlyIn } from "../availability.js";
import { whoseText } from "../naming.js";
import { differenceText, headText, sizeOf, tokenText, weightText } from "../formatting.js";
import { createMap, createMaps } from "./map.js";
import { barList, newest, readout } from "./components.js";
import { labelsOf } from "./text.js";
import { traced } from "./page-drawing.js";

const LISTED = 12;

export const compareView = {
  name: "compare",
  label: "Compare",
  key: "9",
  variants: false,
  keys: [
    ["x", "change A and B"],
    ["← → ↑ ↓", "in a map: cell by cell"],
    ["Enter", "in a map: pin a cell"],
  ],
  available: (scene) => scene.variants.length > 1,
  create,
};

function create({ scene, source, store, palette }) {
  const load = createMaps(source);
  const ask = newest();
  const rank = newest();
  const chooser = (name, testid, onPick) => {
    const select = h(
      "select",
      { "aria-label": name, data: { testid }, on: { change: () => onPick(Number(select.value)) } },
      scene.variants.map((variant, index) => h("option", { value: index }, variant.name)),
    );
    return { select, element: h("label", { class: "labelled" }, name, select) };
  };
  const first = chooser("A", "compare-a", (variant) =>
    store.set({ variant, minus: other() === variant ? pair().a : other() }),
  );
  const second = chooser("B", "compare-b", (minus) =>
    store.set({ minus, variant: state.variant === minus ? other() : state.variant }),
  );
  const swap = h(
    "button",
    {
      type: "button",
      class: "button",
      title: "Swap A and B (x)",
      data: { testid: "compare-swap" },
      on: { click: () => change() },
    },
    "A ⇄ B",
  );
  const said = readout("compare-readout", "Point at a cell: its weight in A, in B, and the difference.");
  const maps = ["a", "b", "difference"].map((name) =>
    createMap({
      title: name,
      testid: name === "difference" ? name : `map-${name}`,
      onCell: (cell) => point(cell),
      onPick: (cell) => store.set({ row: cell.row, key: cell.column }),
    }),
  );
  const legend = h("div", { class: "difference-legend" });
  const list = barList({ title: "Heads that differ most", testid: "differ-most", css: () => "var(--soft)" });
  const trio = h(
    "div",
    { class: "trio" },
    maps.map((map) => map.element),
  );
  const element = h(
    "div",
    { class: "sheet compare-view" },
    h("div", { class: "controls", data: { trace: "skip" } }, first.element, swap, second.element),
    said.element,
    trio,
    legend,
    h("div", { class: "ranking" }, list.element),
  );
  let state = store.get();
  let ranked = "";
  let order = [];

  /** B is the subtracted variant of the state; by default the nearest other one. */
  function other() {
    if (state.minus !== null && state.minus !== state.variant) return state.minus;
    return state.variant === 0 ? 1 : state.variant - 1;
  }

  function pair() {
    return { a: state.variant, b: other() };
  }

  function change() {
    const { a, b } = pair();
    store.set({ variant: b, minus: a });
  }

  function draw() {
    const { a, b } = pair();
    const where = { site: state.site, head: state.head, call: state.call };
    const site = scene.sites[state.site];
    const size = sizeOf(site, state.call);
    const rows = labelsOf(scene, a, site.rows, size.queries + (size.start || 0)).slice(size.start || 0);
    const [columns, others] = [a, b].map((variant) => labelsOf(scene, variant, site.columns, size.keys));
    const wanted = [
      { ...where, variant: a },
      { ...where, variant: b },
      { ...where, variant: a, minus: b },
    ];
    const names = [
      `A: ${scene.variants[a].name}${answered(scene, a)}`,
      `B: ${scene.variants[b].name}${answered(scene, b)}`,
      "A − B: orange more in A, blue more in B",
    ];
    maps.forEach((map, index) => {
      map.caption(names[index]);
      load(wanted[index], size).then(
        (found) => {
          // Ignore a result that is no longer selected.
          if (
            state.site !== where.site ||
            state.head !== where.head ||
            state.call !== where.call ||
            pair().a !== a ||
            pair().b !== b
          )
            return;
          map.show(
            found,
            index === 2 ? palette.differenceTable() : palette.table(),
            { rows: index ? [] : rows, columns: index === 1 ? others : columns },
          );
          if (state.row !== null) map.cursor(pinned());
        },
        (problem) => map.say(problem.message),
      );
    });
    const bar = palette.legend(true);
    bar.dataset.testid = "difference-legend";
    fill(legend, bar);
  }

  function pinned() {
    return state.row === null ? null : { row: state.row, column: state.key ?? 0 };
  }

  function point(cell) {
    const at = cell || pinned();
    for (const map of maps) map.cursor(at);
    if (!at) return said.say(headText(scene, state.site, state.head));
    const { a, b } = pair();
    const where = { site: state.site, head: state.head, call: state.call, row: at.row };
    return ask(
      () => Promise.all([source.row({ ...where, variant: a }), source.row({ ...where, variant: b })]),
      ([mine, others]) => {
        const site = scene.sites[state.site];
        const start = sizeOf(site, state.call).start || 0;
        const from = tokenText(labelsOf(scene, a, site.rows, start + at.row + 1)[start + at.row], 24);
        const to = tokenText(labelsOf(scene, a, site.columns, at.column + 1)[at.column], 24);
        const [x, y] = [mine[at.column], others[at.column]];
        said.say(
          `“${from}” → “${to}”:   A ${weightText(x)}   ·   B ${weightText(y)}   ·   A − B ${differenceText(x - y)}`,
        );
      },
      (words) => said.say(words),
    );
  }

  /** Heads by the share of weight that differs, from the thumbnails of the overview. */
  function compareAll() {
    const { a, b } = pair();
    const name = `${a} ${b} ${state.call}`;
    if (name === ranked) return showOrder();
    ranked = name;
    return rank(
      () =>
        Promise.all([
          source.overview({ variant: a, call: state.call }),
          source.overview({ variant: b, call: state.call }),
        ]),
      ([mine, others]) => {
        const indices = new Map(others.heads.map((head, index) => [String(head), index]));
        order = mine.heads.flatMap(([site, head], index) => {
          const partner = indices.get(String([site, head]));
          return partner === undefined
            ? []
            : [{ site, head, weight: apart(mine.of(index), others.of(partner), palette.weightOf) }];
        });
        order.sort((x, y) => y.weight - x.weight);
        showOrder();
      },
      (words) => list.show([], words),
    );
  }

  /** What cannot be compared, since one of the two lacks it. */
  function alone() {
    const { a, b } = pair();
    return [
      ["A", sitesOnlyIn(scene, a, b)],
      ["B", sitesOnlyIn(scene, b, a)],
    ].flatMap(([name, labels]) => (labels.length ? [`Only in ${name}: ${labels.join(", ")}.`] : []));
  }

  function showOrder() {
    list.show(
      order.slice(0, LISTED).map(({ site, head, weight }) => ({
        text: headText(scene, site, head),
        weight,
        number: `${(100 * weight).toFixed(weight < 0.0995 ? 1 : 0)} %`,
        chosen: site === state.site && head === state.head,
        testid: `differs-${site}-${head}`,
        onPick: () => store.set({ site, head }),
      })),
      [
        "Share of the weight that is on other keys in B than in A, measured on the overview’s thumbnails.",
        ...alone(),
      ].join(" "),
    );
  }

  return {
    element,
    update(next, changed) {
      state = next;
      first.select.value = String(pair().a);
      second.select.value = String(pair().b);
      if (["view", "variant", "minus", "site", "head", "call", "theme", "scale"].some((name) => changed.has(name)))
        draw();
      point(null);
      compareAll();
    },
    onKey(event) {
      if (maps.some((map) => map.onKey(event))) return true;
      if (event.key !== "x") return false;
      change();
      return true;
    },
    difference: () => false,
    subject: () => [scene.variants[pair().a].name, `minus ${scene.variants[pair().b].name}`, whoseText(scene, state)],
    drawing: () => traced(element, palette),
    async table() {
      const { a, b } = pair();
      const site = scene.sites[state.site];
      const size = sizeOf(site, state.call);
      const rows = [];
      for (let row = 0; row < Math.min(size.queries, 512); row += 1) {
        const where = { site: state.site, head: state.head, call: state.call, row };
        const [mine, others] = await Promise.all([
          source.row({ ...where, variant: a }),
          source.row({ ...where, variant: b }),
        ]);
        mine.forEach((weight, key) => rows.push([siteName(site, a), state.head, row, key, weight, others[key], weight - others[key]]));
      }
      return { head: ["site", "head", "row", "key", scene.variants[a].name, scene.variants[b].name, "difference"], rows };
    },
    destroy() {
      ask.forget();
      rank.forget();
    },
  };
}

/** The share of two maps' weight that is not in the same cells: 0 for equal maps, 1 for maps that share nothing. */
export function apart(mine, others, weightOf) {
  let off = 0;
  let all = 0;
  for (let index = 0; index < mine.length; index += 1) {
    const [x, y] = [weightOf(mine[index]), weightOf(others[index])];
    off += Math.abs(x - y);
    all += x + y;
  }
  return all > 0 ? off / all : 0;
}
