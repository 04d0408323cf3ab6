// Beside the matrix: the exact weight of the pair under the pointer, and the strongest of its row and column.

import { createVerdict } from "./causes.js";
import { h, fill, settled } from "./dom.js";
import { differenceText, headText, keyText, rowText, seenBy, sizeOf, weightText } from "./formatting.js";

const MOST = 8;
const REST = 90;

/** `{element, show(state, cell, near), refresh()}`; `cell` is {row, key} or null, `near` a text about a coarse pixel. */
export function createReadout(context, announce) {
  const { scene, source, palette, store } = context;
  const verdict = createVerdict(context);
  const pair = h("div", { class: "readout-pair", data: { testid: "readout" } });
  const rows = h("section", {});
  const columns = h("section", {});
  const element = h("aside", { class: "readout", "aria-label": "Weights" }, pair, rows, columns, verdict.element);
  let turn = 0;
  let known = "";

  const list = (title, values, labelOf, pick, difference) => {
    const order = strongest(values, MOST);
    const top = Math.max(1e-9, ...order.map((index) => Math.abs(values[index])));
    return [
      h("h3", { class: "label" }, ...title),
      h("ol", { class: "strongest" }, order.map((index) => {
        const value = values[index];
        const bar = h("span", { class: "weight-bar", style: { width: `${(100 * Math.abs(value)) / top}%`, background: difference ? palette.differenceCss(value) : palette.css(value) } });
        return h("li", {}, h("button", { type: "button", class: "strong", title: `position ${index}`, on: { click: () => pick(index) } }, h("bdi", { class: "strong-word" }, labelOf(index)), h("span", { class: "weight-track" }, bar), h("span", { class: "strong-number" }, difference ? differenceText(value) : weightText(value))));
      })),
    ];
  };

  const load = settled(async (state, cell, mine) => {
    const labels = seenBy(scene, state.variant);
    const site = scene.sites[state.site];
    const difference = state.minus !== null;
    const which = { variant: state.variant, site: state.site, head: state.head, call: state.call, minus: state.minus };
    try {
      const values = await source.row({ ...which, row: cell.row });
      if (mine !== turn) return;
      const text = (difference ? differenceText : weightText)(values[cell.key], true);
      fill(weight, text);
      // Only a pinned pair is announced to screen readers, not every hovered one.
      if (state.row === cell.row && state.key === cell.key) announce(`${rowText(labels, site, state.call, cell.row)} to ${keyText(labels, site, cell.key)}: ${text}`);
      fill(rows, list([h("bdi", {}, rowText(labels, site, state.call, cell.row, 18)), " attends to"], values, (key) => keyText(labels, site, key, 24), (key) => store.set({ row: cell.row, key }), difference));
      // A column needs every query; it is fetched only for a pinned pair.
      if (state.row !== cell.row || state.key !== cell.key) {
        fill(columns, h("p", { class: "hint" }, "Click a cell to pin it and to see which other queries attend to its key."));
        return;
      }
      const down = await source.column({ ...which, key: cell.key });
      if (mine !== turn) return;
      fill(columns, list(["who attends to ", h("bdi", {}, keyText(labels, site, cell.key, 18))], down, (row) => rowText(labels, site, state.call, row, 24), (row) => store.set({ row, key: cell.key }), difference));
    } catch (problem) {
      if (mine === turn && problem.name !== "AbortError") fill(columns, h("p", { class: "trouble", role: "alert" }, problem.message));
    }
  }, REST);

  const weight = h("output", { class: "readout-weight", data: { testid: "weight" } });

  return {
    element,
    forget: verdict.forget,
    show(state, cell, near) {
      const site = scene.sites[state.site];
      const size = sizeOf(site, state.call);
      verdict.show(state.site);
      if (!cell || cell.row >= size.queries || cell.key >= size.keys) {
        const nothing = `nothing ${state.site} ${state.head}`;
        if (known === nothing) return;
        load.cancel();
        turn += 1;
        known = nothing;
        fill(pair, h("p", { class: "readout-head" }, headText(scene, state.site, state.head)), h("p", { class: "hint" }, "Rows are queries, columns are keys. Point at a cell for its weight; drag, scroll or pinch to move."));
        fill(rows);
        fill(columns);
        return;
      }
      const labels = seenBy(scene, state.variant);
      const name = [cell.row, cell.key, state.row, state.key, state.variant, state.minus, state.site, state.head, state.call, palette.theme(), palette.scale(), near].join(" ");
      if (name === known) return;
      known = name;
      turn += 1;
      fill(weight, "…");
      fill(
        pair,
        h("p", { class: "readout-words" }, h("bdi", {}, rowText(labels, site, state.call, cell.row, 30)), h("span", { class: "arrow", "aria-label": "attends to" }, " → "), h("bdi", {}, keyText(labels, site, cell.key, 30))),
        weight,
        h("p", { class: "readout-place" }, `row ${cell.row + (size.start || 0)}, column ${cell.key}`, state.row === cell.row && state.key === cell.key ? " · held" : ""),
        near ? h("p", { class: "hint" }, near) : null,
      );
      load(state, { row: cell.row, key: cell.key }, turn);
    },
  };
}

/** Indices of the values of largest magnitude, in one pass: rows may have 32 thousand values. */
export function strongest(values, count) {
  const best = [];
  for (let index = 0; index < values.length; index += 1) {
    const size = Math.abs(values[index]);
    if (!(size > 0) || (best.length === count && size <= Math.abs(values[best[count - 1]]))) continue;
    let at = best.length;
    while (at > 0 && Math.abs(values[best[at - 1]]) < size) at -= 1;
    best.splice(at, 0, index);
    if (best.length > count) best.pop();
  }
  return best;
}
