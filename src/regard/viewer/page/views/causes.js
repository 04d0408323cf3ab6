// What the answer comes from: parts of this run put into the run on another text, and maps judged against random ones.

import { h, fill } from "../dom.js";
import { againstText } from "../causes.js";
import { headText, tokenText } from "../formatting.js";
import { choice, optionsOf, optionsText, barList } from "./components.js";
import { traced } from "./page-drawing.js";

const USUAL = { by: "heads" };
const BY = [
  ["heads", "Heads", "Each head’s output, at all positions together"],
  ["each", "Heads by position", "Each head’s output at each position"],
  ["layers", "Layers by position", "The rows that leave each layer, position by position"],
];
const QUESTIONS = { heads: { by: "heads", positions: "all" }, each: { by: "heads", positions: "each" }, layers: { by: "layers", positions: "each" } };
const ALLOWED = { by: BY.map(([name]) => name) };
const LISTED = 10;
const NUMBERED = 24; // columns up to which cells hold their number

export const causesView = {
  name: "causes",
  label: "Causes",
  key: "c",
  calls: false,
  variants: false,
  rail: false,
  keys: [["Enter", "in the text: patch"]],
  available: (scene) => Boolean(scene.input && scene.input.causes),
  create,
};

function create({ scene, store, palette, causes }) {
  const reads = scene.input.takes.includes("text");
  const options = () => optionsOf(store.get().v, USUAL, ALLOWED);
  const kept = causes.patched();
  const field = h("textarea", { class: "input-text", rows: 1, spellcheck: "false", maxlength: scene.input.longest, "aria-label": "Another text with another answer", value: kept ? kept.question.against : scene.input.text, data: { testid: "against" } });
  const by = choice({ label: "What is patched", options: BY, value: options().by, testid: "by", onChange: (value) => store.set({ v: optionsText({ by: value }, USUAL) }) });
  const run = h("button", { type: "submit", class: "button", data: { testid: "patch" } }, "Patch");
  const status = h("p", { class: "said", role: "status", data: { testid: "patch-status" } });
  const form = h("form", { class: "input-bar", data: { trace: "skip" }, on: { submit: (event) => { event.preventDefault(); patch(); } } }, field, run);
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    patch();
  });
  const board = h("div", { class: "heat-board", data: { testid: "heat" } });
  const best = barList({ title: "Largest effects", testid: "largest", css: (value) => palette.differenceCss(value) });
  best.element.hidden = true;
  const judge = h("button", { type: "button", class: "button", data: { testid: "judge-all", trace: "skip" }, on: { click: () => judgeAll() } }, "Judge every map");
  const judged = h("div", { class: "judged", role: "status" });
  const element = h(
    "div", { class: "sheet causes-view" },
    reads
      ? h("section", { class: "cause" },
          h("h2", {}, "Which parts carry the answer?"),
          h("p", { class: "quiet", data: { trace: "skip" } }, "Change a word below so that the answer changes, with as many tokens. Each part of the run on this input is put into the run on that text: 0 changes nothing, 1 restores the answer."),
          form, h("div", { class: "controls", data: { trace: "skip" } }, by.element), status,
          h("div", { class: "split" }, board, h("aside", { class: "panel" }, best.element)))
      : null,
    h("section", { class: "cause" },
      h("h2", {}, "Do the maps matter?"),
      h("p", { class: "quiet", data: { trace: "skip" } }, "The inputs that a layer’s map marks are removed, or kept alone, and the answer is compared with that for maps drawn at random."),
      judge, judged),
  );

  async function patch() {
    const question = { ...QUESTIONS[options().by], against: field.value };
    run.disabled = true;
    fill(status, "running the model with each part patched …");
    try {
      await causes.patch(question);
      drawPatch();
    } catch (problem) {
      fill(status, problem.message);
    } finally {
      run.disabled = false;
    }
  }

  function drawPatch() {
    const patched = causes.patched();
    if (!patched) return;
    const { result } = patched;
    fill(status, `${result.measured}: ${result.clean.toFixed(3)} for this input, ${result.corrupted.toFixed(3)} for the other`);
    fill(board, tables(result));
    const cells = cellsOf(scene, result);
    cells.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
    best.element.hidden = !cells.length;
    best.show(cells.slice(0, LISTED).map((cell) => ({
      text: cell.name, weight: cell.value, number: percent(cell.value), onPick: () => open(cell),
    })), cells.length ? "share of the difference between the two answers that the part restores" : "Both texts have the same answer, so nothing can be restored.");
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
    const small = columns.length <= NUMBERED;
    const cell = (value, row, column) => {
      if (value === null) return h("td", { class: "heat-none" });
      const text = signed(value.toFixed(2));
      return h("td", { class: "heat-cell", style: { background: palette.differenceCss(value), color: palette.differenceInk(value) }, title: `${rows[row][0]}, ${unit ? `${unit} ` : ""}${columns[column]}: ${percent(value)}`, on: { click: () => open(at(row, column)) } }, small ? text : "");
    };
    return h("div", { class: "scrolls", tabindex: "0", role: "region", "aria-label": "Effects of patches" }, h("table", { class: `heat${small ? "" : " dense"}` },
      h("thead", {}, h("tr", {}, h("td", {}, unit), columns.map((label) => h("th", { scope: "col" }, h("bdi", { class: unit ? "" : "turned" }, label))))),
      h("tbody", {}, rows.map(([label, values], row) => h("tr", {}, h("th", { scope: "row" }, label), values.map((value, column) => cell(value, row, column)))))));
  }

  function judgeAll() {
    judge.disabled = true;
    fill(judged, "comparing every map with random ones …");
    causes.judge().then(drawJudged, (problem) => fill(judged, problem.message)).finally(() => {
      judge.disabled = false;
    });
  }

  function drawJudged() {
    const found = causes.judged();
    if (!found) return;
    judge.hidden = true;
    const line = (map) => h("tr", { class: map.matters ? "matters" : "" },
      h("th", { scope: "row" }, map.site === null || map.site === undefined ? map.name : scene.sites[map.site].label),
      h("td", {}, againstText(map.comprehensiveness)), h("td", {}, againstText(map.sufficiency)),
      h("td", {}, map.matters ? "matters" : "no better than random"));
    fill(judged, h("p", { class: "quiet" }, `${found.measured}: ${found.value.toFixed(3)}; shares of ${found.shares.map((share) => `${Math.round(100 * share)} %`).join(", ")} of the inputs; ${found.draws} random maps. Between the two numbers in brackets lie 95 % of them.`),
      h("div", { class: "scrolls", tabindex: "0", role: "region", "aria-label": "Faithfulness of each layer’s map" }, h("table", { class: "plain-table", data: { testid: "faithfulness" } },
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "map of"), h("th", { scope: "col", title: "how far the answer falls without the marked inputs: higher is better" }, "comprehensiveness"), h("th", { scope: "col", title: "how far the answer falls with only the marked inputs: lower is better" }, "sufficiency"), h("th", { scope: "col" }, ""))),
        h("tbody", {}, found.maps.map(line)))));
  }

  drawPatch();
  drawJudged();
  return {
    element,
    update(state, changed) {
      by.set(options().by);
      if (changed.has("theme")) drawPatch();
    },
    difference: () => true,
    what: () => ["share of the answer’s difference that a part restores"],
    subject: () => "causes",
    drawing: () => traced(element, palette, { difference: true }),
    table() {
      const patched = causes.patched();
      const judgedMaps = causes.judged();
      if (patched) return { head: ["part", "recovered"], rows: cellsOf(scene, patched.result).map((cell) => [cell.name, cell.value]) };
      if (judgedMaps) return { head: ["map", "comprehensiveness", "random low", "random high", "sufficiency", "random low", "random high", "matters"], rows: judgedMaps.maps.map((map) => [map.name, map.comprehensiveness.value, map.comprehensiveness.low, map.comprehensiveness.high, map.sufficiency.value, map.sufficiency.low, map.sufficiency.high, map.matters]) };
      return null;
    },
  };
}

function siteLabel(scene, result, row) {
  const site = result.sites[row];
  return site === null ? result.names[row] : scene.sites[site].label || scene.sites[site].name;
}

function percent(value) {
  return `${signed((100 * value).toFixed(Math.abs(value) < 0.0995 ? 1 : 0))} %`;
}

/** A number with a true minus sign; zero has none. */
function signed(text) {
  return /[1-9]/.test(text) ? text.replace("-", "−") : text.replace("-", "");
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
