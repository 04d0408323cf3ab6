// What the answer comes from: parts put into another run, what layers and heads say, which inputs count, which maps matter.

import { h } from "../dom.js";
import { tokenText } from "../formatting.js";
import { optionsOf, optionsText } from "./components.js";
import { traced } from "./page-drawing.js";
import { BY, patchSection } from "./cause-patches.js";
import { contributionSection, lensSection } from "./cause-sayings.js";
import { inputSection } from "./cause-inputs.js";
import { mapSection } from "./cause-maps.js";

const USUAL = { by: "heads" };
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

function create(context) {
  const { scene, store, palette, causes } = context;
  const chosen = () => optionsOf(store.get().v, USUAL, ALLOWED).by;
  const patches = scene.input.takes.includes("text") ? patchSection({ ...context, by: chosen, onBy: (value) => store.set({ v: optionsText({ by: value }, USUAL) }) }) : null;
  const sections = [patches, ...(causes.says ? [contributionSection(context), lensSection(context)] : []), inputSection(context), mapSection(context)].filter(Boolean);
  const element = h("div", { class: "sheet causes-view" }, placeChoice(causes, draw), sections.map((section) => section.element));

  function draw() {
    for (const section of sections) section.draw();
  }

  return {
    element,
    update(state, changed) {
      if (patches) patches.set(chosen());
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
