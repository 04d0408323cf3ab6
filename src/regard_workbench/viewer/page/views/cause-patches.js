// Which parts carry the answer: parts of this run are put into the run on another text.

import { h, fill } from "../dom.js";
import { headText, tokenText } from "../formatting.js";
import { choice, barList } from "./components.js";
import { inWords } from "../causes.js";
import { barCss, heatTable, percent, signed } from "./cause-heat.js";

/** Name, text and meaning of each sweep, what it patches, and whether positions are patched together. */
export const BY = [
  ["heads", "Heads", "Each head’s output, at all positions together", "heads", "all"],
  ["each", "Heads by position", "Each head’s output at each position", "heads", "each"],
  ["layers", "Layers by position", "The rows that leave each layer, position by position", "layers", "each"],
  ["paths", "Direct paths", "Each head’s output as it reaches the answer directly, with every other head held as it was", "paths", "all"],
];
const MEASURES = [["logit", "logit difference"], ["loss", "loss"], ["probability", "probability"]];
const LISTED = 10;

/** `{element, draw(), chose(), table()}`. `sweeps`: those of `BY` that this model allows; `by()`: the choice that the address holds. */
export function patchSection({ scene, store, palette, causes, sweeps, by: chosen, onBy }) {
  const kept = causes.sweep();
  const current = () => sweeps.find(([name]) => name === chosen()) || sweeps[0];
  const field = h("textarea", { class: "input-text", rows: 1, spellcheck: "false", maxlength: scene.input.longest, "aria-label": "Another text with another answer", value: kept ? kept.against : scene.input.text, data: { testid: "against" } });
  const by = choice({ label: "What is patched", options: sweeps, value: current()[0], testid: "by", onChange: onBy });
  const measure = h("select", { on: { change: () => again({ measure: measure.value }) }, "aria-label": "Measured by", title: "what is measured: the logit of this answer minus that of the other, the loss, or the probability of this answer", data: { testid: "measure" } }, MEASURES.map(([value, text]) => h("option", { value, selected: Boolean(kept && kept.measure === value) }, text)));
  const run = h("button", { type: "submit", class: "button", data: { testid: "patch" } }, "Patch");
  const status = h("p", { class: "said", role: "status", data: { testid: "patch-status" } });
  const form = h("form", { class: "input-bar", data: { trace: "skip" }, on: { submit: (event) => { event.preventDefault(); patch(); } } }, field, causes.says ? measure : null, run);
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    patch();
  });
  const board = h("div", { class: "heat-board", data: { testid: "heat" } });
  const best = barList({ title: "Largest effects", testid: "largest", css: (value) => barCss(palette, value) });
  const element = h("section", { class: "cause" },
    h("h2", {}, "Which parts carry the answer?"),
    h("p", { class: "quiet", data: { trace: "skip" } }, "Change a word below so that the answer changes, with as many tokens. Each part of the run on this input is put into the run on that text: 0 changes nothing, 1 restores the answer."),
    form, h("div", { class: "controls", data: { trace: "skip" } }, by.element), status,
    h("div", { class: "cause-pair" }, board, best.element));

  /** The question that is chosen: what is patched, and text and measure of the newest sweep; null before one. */
  function question() {
    const [, , , by, positions] = current();
    const sweep = causes.sweep();
    return sweep && { by, positions, ...sweep };
  }

  function patch() {
    causes.swept({ against: field.value, ...(causes.says ? { measure: measure.value } : {}) });
    return ask();
  }

  /** Another choice after a sweep is another question: its own numbers are shown, and asked for where they are not there. */
  function again(choices = {}) {
    const sweep = causes.sweep();
    if (!sweep) return;
    causes.swept({ ...sweep, ...choices });
    if (causes.found(question())) draw();
    else ask();
  }

  async function ask() {
    const asked = question();
    const isChosen = () => JSON.stringify(asked) === JSON.stringify(question());
    draw();
    run.disabled = true;
    fill(status, "running the model with each part patched …");
    try {
      await causes.ask(asked);
      if (isChosen()) draw();
    } catch (problem) {
      if (isChosen()) fill(status, inWords(problem));
    } finally {
      if (isChosen()) run.disabled = false;
    }
  }

  function draw() {
    const asked = question();
    const result = asked && causes.found(asked);
    element.dataset.trace = result ? "" : "skip";
    if (!result) {
      best.element.hidden = true;
      fill(board);
      return fill(status);
    }
    run.disabled = false;
    const direct = result.paths ? ` · direct paths to ${result.paths}` : "";
    const doubt = result.doubt ? ` · No shares: ${result.doubt}.` : "";
    fill(status, h("span", {}, `${result.measured}: ${signed(result.clean.toFixed(3))} for this input, ${signed(result.corrupted.toFixed(3))} for “${tokenText(asked.against, 200)}”${direct}${doubt}`));
    const cells = cellsOf(scene, result);
    best.element.hidden = !cells.length;
    fill(board, cells.length ? tables(result) : null);
    cells.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
    best.show(cells.slice(0, LISTED).map((cell) => ({
      text: cell.name, weight: cell.value, number: percent(cell.value), onPick: () => open(cell),
    })), "share of the difference between the two answers that the part restores");
    return undefined;
  }

  function open({ site, head, position }) {
    if (site === null) return;
    store.set({ site, ...(head === null ? {} : { head }), row: null, key: position ?? null, view: "matrix" });
  }

  /** One table of sites × heads or × positions; for heads at positions one table for each site. */
  function tables(result) {
    const labels = (result.tokens || []).map((token) => tokenText(token, 14));
    const site = (row) => siteLabel(scene, result, row);
    if (result.at === "heads" && result.positions === null) {
      const most = Math.max(...result.recovered.map((row) => row.length));
      return heat(Array.from({ length: most }, (_, head) => `${head}`), "head", result.recovered.map((row, index) => [site(index), row]), (row, column) => ({ site: result.sites[row], head: column }));
    }
    const columns = result.positions.map((position) => labels[position] ?? String(position));
    if (result.at !== "heads") return heat(columns, "", result.recovered.map((row, index) => [site(index), row]), (row, column) => ({ site: result.sites[row], head: null, position: result.positions[column] }));
    return result.recovered.map((heads, index) => h("section", {}, h("h3", {}, site(index)), heat(columns, "", heads.map((row, head) => [`head ${head}`, row]), (row, column) => ({ site: result.sites[index], head: row, position: result.positions[column] }))));
  }

  function heat(columns, unit, rows, at) {
    const cell = (value, row, column) => value === null ? null : {
      text: signed(value.toFixed(2)), title: `${rows[row][0]}, ${unit ? `${unit} ` : ""}${columns[column]}: ${percent(value)}`,
      background: palette.effectCss(value), color: palette.effectInk(value), onPick: () => open(at(row, column)),
    };
    return heatTable({ label: "Effects of patches", unit, columns, turned: !unit, rows, cell });
  }

  draw();
  return {
    element,
    draw,
    /** Another choice of what is patched, by a click or by the address. */
    chose() {
      by.set(current()[0]);
      again();
    },
    table() {
      const asked = question();
      const result = asked && causes.found(asked);
      return result ? { head: ["part", "recovered"], rows: cellsOf(scene, result).map((cell) => [cell.name, cell.value]) } : null;
    },
  };
}

/** The page's name of a row of a result. */
export function siteLabel(scene, result, row) {
  const site = result.sites[row];
  return site === null || site === undefined ? result.names[row] : scene.sites[site].label || scene.sites[site].name;
}

/** Every number of a sweep with its name: `{name, value, site, head, position}`. */
function cellsOf(scene, result) {
  const cells = [];
  const words = (position) => (position === null ? "" : ` · “${tokenText((result.tokens || [])[position] ?? String(position), 14)}” at ${position}`);
  result.recovered.forEach((row, index) => {
    const site = result.sites[index];
    const add = (value, head, position) => {
      if (value === null) return;
      const whose = head === null || site === null ? siteLabel(scene, result, index) : headText(scene, site, head);
      cells.push({ name: `${whose}${words(position)}`, value, site, head, position });
    };
    if (result.at === "heads" && result.positions === null) row.forEach((value, head) => add(value, head, null));
    else if (result.at === "heads") row.forEach((values, head) => values.forEach((value, at) => add(value, head, result.positions[at])));
    else row.forEach((value, at) => add(value, null, result.positions === null ? null : result.positions[at]));
  });
  return cells;
}
