// What the answer comes from: parts put into another run, what layers and heads say, which inputs count, which maps matter.

import { fill, h, notice, waiting } from "../dom.js";
import { tokenText } from "../formatting.js";
import { optionsOf, optionsText } from "./components.js";
import { traced } from "./page-drawing.js";
import { BY, patchSection } from "./cause-patches.js";
import { contributionSection, lensSection } from "./cause-sayings.js";
import { inputSection } from "./cause-inputs.js";
import { mapSection } from "./cause-maps.js";

const USUAL = { by: "heads" };
const NAMES = { heads: "heads", paths: "direct paths of heads", layers: "layers", lens: "what each layer would say", contributions: "what each head wrote", inputs: "which inputs count", faithfulness: "whether maps matter" };
const ALLOWED = { by: BY.map(([name]) => name) };

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

const POSSIBLE = { by: "possible" };

function create(context) {
  const { scene, store, palette, causes } = context;
  const chosen = () => optionsOf(store.get().v, USUAL, ALLOWED).by;
  const body = h("div", { class: "cause-sections" });
  const element = h("div", { class: "sheet causes-view" }, placeChoice(causes, draw), body);
  let patches = null;
  let sections = [];

  /** The sections that can be asked about this model; below them why others cannot. */
  function open({ impossible }) {
    const able = (by) => !(by in impossible);
    const sweeps = BY.filter(([, , , by]) => able(by));
    patches = scene.input.takes.includes("text") && sweeps.length ? patchSection({ ...context, sweeps, by: chosen, onBy: (value) => store.set({ v: optionsText({ by: value }, USUAL) }) }) : null;
    sections = [
      patches,
      able("contributions") && contributionSection(context),
      able("lens") && lensSection(context),
      able("inputs") && inputSection(context),
      able("faithfulness") && mapSection(context),
    ].filter(Boolean);
    const reasons = Object.entries(impossible).map(([by, why]) => `${NAMES[by]} (${why})`);
    fill(body, sections.map((section) => section.element), reasons.length ? h("p", { class: "hint", data: { trace: "skip", testid: "impossible" } }, `Not offered for this model: ${reasons.join("; ")}.`) : null);
    if (patches) patches.chose();
  }

  function draw() {
    for (const section of sections) section.draw();
  }

  const known = causes.found(POSSIBLE);
  if (known) open(known);
  else {
    fill(body, waiting("Looking at what can be asked …"));
    causes.ask(POSSIBLE).then(open, (problem) => fill(body, notice("Nothing can be asked about this input", problem.message)));
  }

  return {
    element,
    update(state, changed) {
      if (patches && changed.has("v")) patches.chose();
      if (changed.has("theme") || changed.has("scale")) draw();
    },
    difference: () => "effect",
    what: () => ["from −1 to 1: what a part restores of the answer, or adds to it relative to the largest"],
    subject: () => "causes",
    drawing: () => traced(element, palette, { difference: "effect" }),
    /** Of the first section that has an answer. */
    table: () => sections.reduce((found, section) => found || (section.table ? section.table() : null), null),
  };
}

/** Which answer is asked about, where the model gives one at several positions. */
function placeChoice(causes, draw) {
  if (causes.places.length < 2) return null;
  const select = h("select", { data: { testid: "place" }, on: { change: () => { causes.choose(Number(select.value)); draw(); } } },
    causes.places.map(([place, words]) => h("option", { value: place, selected: place === causes.place() }, `${place}: ${tokenText(words, 24)}`)));
  return h("label", { class: "labelled", data: { trace: "skip" } }, "The answer at position", select);
}
