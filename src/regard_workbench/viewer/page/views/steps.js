// A generation, token by token: the token, its probability, alternatives, and the attention to the prompt, to generated
// tokens (the cache), and to the source or image, where there is one.

import { h, fill } from "../dom.js";
import { headCount } from "../availability.js";
import { WHOSE, whoseCells, whoseText } from "../naming.js";
import { tokenText, weightText } from "../formatting.js";
import { createBeams } from "./beams.js";
import { createChances, percent, sharesOf } from "./probabilities.js";
import { createHeads } from "./heads.js";
import { createOverlay } from "./overlay.js";
import { barList, choice, newest, optionsOf, optionsText, player, readout } from "./components.js";
import { strongest, weightsFrom } from "./positions.js";
import { createText, labelsOf } from "./text.js";
import { traced } from "./page-drawing.js";
import { writersOf, writingOf } from "./generation.js";

const USUAL = { how: "head" };
const HOW = [
  ["head", "This head"],
  ["mean", "Mean of layer"],
];
const ALLOWED = { how: ["head", "mean"] };
const LISTED = 5;

export const stepsView = {
  name: "steps",
  label: "Steps",
  key: "4",
  calls: false,
  keys: [
    ["[ ]", "token before, token after"],
    ["space", "play, pause"],
    ["Home End", "first token, last token"],
    ["m", "head, mean of layer"],
  ],
  available: (scene) => Boolean(scene.generation && scene.generation.steps.length && writersOf(scene).all.length),
  create,
};

function create({ scene, source, store, palette }) {
  const story = writingOf(scene);
  const { sites, prompt, steps, labels } = story;
  const ask = newest();
  const options = () => optionsOf(store.get().v, USUAL, ALLOWED);
  const worded = (patch) => ({ v: optionsText({ ...options(), ...patch }, USUAL) });
  const go = (index) => store.set(story.going(state, index));
  const how = choice({
    label: "Whose weights",
    options: HOW,
    testid: "how",
    onChange: (value) => store.set(worded({ how: value })),
  });
  const play = player({
    count: steps.length,
    what: "step",
    testid: "step",
    onGo: go,
    wordsOf: (index) => `step ${index} of 0–${steps.length - 1}`,
  });
  const said = readout("step-readout", "");
  const text = createText({
    title: story.begins === "prompt" ? "Prompt and generated text" : "Generated text",
    kind: story.kind,
    labels,
    palette,
    onEnter: (index) => tell(index, labels, found.own),
    onPick: visit,
  });
  const share = h("p", { class: "shares", data: { testid: "shares" } });
  const elsewhere = h("div", { class: "elsewhere" });
  const likely = barList({ title: "Next token", testid: "alternatives", css: () => "var(--soft)" });
  const inText = barList({ title: "Attention to the text", testid: "looked-at", css: palette.css });
  const inSource = barList({ title: "Attention to the source", testid: "looked-at-source", css: palette.css });
  const beams = createBeams();
  const heads = createHeads({
    scene,
    source,
    store,
    palette,
    onPick: (head) => store.set({ head, ...worded({ how: "head" }) }),
  });
  const chances = createChances(steps, go);
  const controls = h("div", { class: "controls", data: { trace: "skip" } }, play.element, how.element);
  const element = h(
    "div",
    { class: "sheet steps-view" },
    h("div", { class: "sheet-top", data: { trace: "bare" } }, controls, chances.element, said.element),
    h(
      "div",
      { class: "split" },
      h("div", { class: "texts" }, elsewhere, text.element, share, beams.element, heads.element),
      h("aside", { class: "panel" }, likely.element, inSource.element, inText.element),
    ),
  );
  let state = store.get();
  let at = 0;
  let found = { own: null, other: null, ownSite: null, otherSite: null };
  let other = null; // {show(weights), repaint(), labels}: the source text or the picture

  text.tokens.forEach((token, index) => token.classList.toggle("prompt", index < prompt));

  /** From a token to the step that wrote it. */
  function visit(index) {
    if (index >= prompt) go(index - prompt);
  }

  function look() {
    const ownSite = story.partner(sites.self, state.site);
    const otherSite = story.partner(sites.cross, state.site);
    const read = (site) => {
      if (site === null) return null;
      const head = Math.min(state.head, scene.sites[site].heads - 1);
      return weightsFrom(source, scene, { ...state, site, head }, story.query(at), options().how);
    };
    ask(
      () => Promise.all([read(ownSite), read(otherSite)]),
      ([own, others]) => {
        found = { own, other: others, ownSite, otherSite };
        paint();
      },
      (words) => {
        found = { own: null, other: null, ownSite, otherSite };
        paint();
        said.say(words);
      },
    );
  }

  function paint() {
    const step = steps[at];
    play.tell(at);
    text.tokens.forEach((token, index) => {
      token.classList.toggle("future", index > prompt + at);
      token.classList.toggle("new", index === prompt + at);
    });
    text.choose(prompt + at);
    text.tint(found.own);
    chances.choose(at);
    fill(share, found.own && sharesOf(found.own, prompt, story.begins));
    if (found.otherSite !== null) {
      other ||= created(scene.sites[found.otherSite]);
      other.show(found.other);
    }
    list(step);
    beams.show(step.beams);
    said.say(whose());
    const site = found.ownSite ?? found.otherSite;
    heads.look(state, site, story.query(at), site === found.ownSite ? labels : other.labels, "step");
  }

  function list(step) {
    const words = [[step.token, step.probability], ...(step.others || [])].slice(0, LISTED);
    likely.show(words.map(([word, weight]) => ({ text: tokenText(word, 24), weight, number: percent(weight) })));
    const items = (weights, names) =>
      strongest(weights, LISTED).map(({ index, weight }) => ({
        index,
        text: tokenText(names[index], 24),
        detail: String(index),
        weight,
      }));
    inText.element.hidden = !found.own;
    inText.show(
      items(found.own, labels).map((item) => ({
        ...item,
        onEnter: () => text.point(item.index),
        onLeave: () => text.point(null),
        onPick: () => visit(item.index),
      })),
    );
    inSource.element.hidden = !found.other;
    inSource.show(found.other ? items(found.other, other.labels) : []);
  }

  function shownSite() {
    return found.ownSite ?? found.otherSite ?? state.site;
  }

  function whose() {
    const name = whoseText(scene, { ...state, site: shownSite() }, options().how);
    return `“${tokenText(steps[at].token, 40)}” with ${percent(steps[at].probability)}   ·   weights: ${name}`;
  }

  /** Keys besides the text: an image, or the source's tokens. */
  function created(site) {
    const names = labelsOf(scene, state.variant, site.columns, site.calls[0].keys);
    if (site.columns === "patches" && scene.image) {
      const overlay = createOverlay({ image: scene.image, palette });
      fill(elsewhere, h("section", { class: "text" }, h("h3", {}, "Picture"), overlay.element));
      const show = (weights) => overlay.show(weights && weights.subarray(scene.image.skip));
      return { labels: names, show, repaint: overlay.repaint };
    }
    const kind = site.columns === story.kind ? "source" : site.columns;
    const words = createText({
      title: "Source",
      kind,
      labels: names,
      palette,
      onEnter: (index) => tell(index, names, found.other),
    });
    fill(elsewhere, words.element);
    return { labels: names, show: words.tint, repaint: words.repaint };
  }

  function tell(index, names, weights) {
    if (index === null || !weights || weights[index] === undefined) return said.say(whose());
    const [written, seen] = [steps[at].token, names[index]].map((word) => `“${tokenText(word, 24)}”`);
    return said.say(`writing ${written} looked at ${seen} (${index}) with ${weightText(weights[index])}`);
  }

  return {
    element,
    update(next, changed) {
      state = next;
      if (!sites.all.includes(state.site)) {
        // An encoder layer has no steps. Deferred, so that no listener sees an old state last.
        const site = (sites.self.length ? sites.self : sites.cross).at(-1);
        queueMicrotask(() => store.set({ site, row: null, call: -1 }));
        return;
      }
      at = story.stepOf(state);
      how.set(options().how);
      how.element.hidden = headCount(scene.sites[state.site], state.variant) < 2;
      play.set(at);
      if (changed.has("theme") || changed.has("scale")) {
        text.repaint();
        if (other) other.repaint();
      }
      look();
    },
    onKey(event) {
      if (text.onKey(event) || play.onKey(event)) return true;
      if (event.key === "m") store.set(worded({ how: options().how === "head" ? "mean" : "head" }));
      else if (event.key === "Home") go(0);
      else if (event.key === "End") go(steps.length - 1);
      else return false;
      return true;
    },
    difference: () => false,
    subject: () => [whoseText(scene, { ...state, site: shownSite() }, options().how), `step ${at}`],
    drawing: () => traced(element, palette),
    table() {
      const { token, probability } = steps[at];
      const lines = (weights, names, where, site) =>
        Array.from(weights || [], (weight, index) => [
          ...whoseCells(scene, { ...state, site }, options().how),
          at,
          token,
          probability,
          where,
          index,
          names[index],
          weight,
        ]);
      const rows = [
        ...lines(found.own, labels, "text", found.ownSite),
        ...(other ? lines(found.other, other.labels, "source", found.otherSite) : []),
      ];
      return { head: [...WHOSE, "step", "token", "probability", "looked at in", "position", "looked at", "weight"], rows };
    },
    destroy() {
      play.stop();
      ask.forget();
      heads.forget();
    },
  };
}
