// A generation, token by token: what was written, how likely it was, what else there was, and where the model looked:
// in the prompt, in what it had written itself (its cache), and in the source or picture, where there is one.

import { h, fill } from "../dom.js";
import { headText, tokenText, weightText } from "../words.js";
import { createBeams } from "./beams.js";
import { CARDS, createHeads } from "./heads.js";
import { createOverlay } from "./overlay.js";
import { placesOf, positionOf, strongest, weightsFrom } from "./places.js";
import { barList, choice, newest, optionsOf, optionsText, player, readout } from "./parts.js";
import { createText, labelsOf } from "./text.js";
import { traced } from "./tracing.js";

const USUAL = { how: "head" };
const HOW = [["head", "This head"], ["mean", "Mean of layer"]];
const ALLOWED = { how: ["head", "mean"] };
const LISTED = 5;

export const stepsView = {
  name: "steps",
  label: "Steps",
  key: "4",
  calls: false,
  keys: [["[ ]", "token before, token after"], ["space", "play, pause"], ["Home End", "first token, last token"], ["m", "head, mean of layer"]],
  available: (scene) => Boolean(scene.generation && scene.generation.steps.length && writers(scene).all.length),
  create,
};

/** The sites that took part in writing: `self` looks at what was written before, `cross` at something else. */
function writers(scene) {
  const { prompt, steps } = scene.generation;
  const twoSided = scene.sites.some((site) => site.rows === "targets" || site.rows === "read");
  const all = [];
  scene.sites.forEach((site, index) => {
    const places = placesOf(site);
    const writes = twoSided ? site.rows === "targets" || site.rows === "read" : site.rows === "tokens";
    if (writes && places[prompt - 1] && places[prompt + steps.length - 2]) all.push(index);
  });
  const crosses = (index) => scene.sites[index].cross || scene.sites[index].rows !== scene.sites[index].columns;
  return { all, self: all.filter((index) => !crosses(index)), cross: all.filter(crosses) };
}

function create({ scene, source, store, palette }) {
  const { prompt, steps } = scene.generation;
  const sites = writers(scene);
  const ask = newest();
  const options = () => optionsOf(store.get().v, USUAL, ALLOWED);
  const set = (patch) => store.set({ v: optionsText({ ...options(), ...patch }, USUAL) });
  const how = choice({ label: "Whose weights", options: HOW, value: "head", testid: "how", onChange: (value) => set({ how: value }) });
  const play = player({ count: steps.length, what: "step", testid: "step", onGo: go, wordsOf: (index) => `step ${index + 1} of ${steps.length}` });
  const said = readout("step-readout", "");
  // What a decoder has read begins with its start token; a list of targets begins with the first word written.
  const own = scene.sites[sites.self.length ? sites.self[0] : sites.cross[0]].rows;
  const kind = own === "targets" && scene.tokens.read ? "read" : own;
  const begins = kind === "tokens" ? "prompt" : "start";
  // Labels may hold the prompt only: what was written is known from the steps.
  const labels = [...labelsOf(scene, 0, kind, prompt), ...steps.map((step) => step.token)];
  const text = createText({ title: begins === "prompt" ? "Prompt and what was written" : "What was written", kind, labels, palette, onEnter: point, onPick: (index) => index >= prompt && go(index - prompt) });
  const share = h("p", { class: "shares", data: { testid: "shares" } });
  const elsewhere = h("div", { class: "elsewhere" });
  const likely = barList({ title: "Next token", testid: "alternatives", css: () => "var(--soft)" });
  const inText = barList({ title: "Looked at in the text", testid: "looked-at", css: palette.css });
  const inSource = barList({ title: "Looked at in the source", testid: "looked-at-source", css: palette.css });
  const beams = createBeams();
  const heads = createHeads({ palette, onPick: (head) => store.set({ head, v: optionsText({ ...options(), how: "head" }, USUAL) }) });
  const askHeads = newest();
  const chart = h("div", { class: "chances", role: "group", "aria-label": "Probability of each written token" });
  const columns = steps.map((step, index) =>
    h("button", { type: "button", class: "chance", tabindex: -1, title: `${tokenText(step.token, 30)} · ${percent(step.probability)}`, data: { testid: `step-${index}` }, on: { click: () => go(index) } },
      h("span", { style: { height: `${Math.max(3, 100 * step.probability)}%` } })));
  fill(chart, columns, h("span", { class: "chances-words", "aria-hidden": "true" }, "probability of each token"));
  const element = h("div", { class: "sheet steps-view" },
    h("div", { class: "sheet-top", data: { trace: "bare" } }, h("div", { class: "controls", data: { trace: "skip" } }, play.element, how.element), chart, said.element),
    h("div", { class: "split" }, h("div", { class: "texts" }, elsewhere, text.element, share, beams.element, heads.element), h("aside", { class: "panel" }, likely.element, inSource.element, inText.element)));
  let state = store.get();
  let at = 0;
  let found = { own: null, other: null, layer: 0 };
  let other = null; // {show(weights), repaint(), labels}: the source text or the picture

  text.tokens.forEach((token, index) => token.classList.toggle("prompt", index < prompt));

  /** The step a state stands for: the query it names has written the token behind it. */
  function stepOf(next) {
    const site = scene.sites[next.site];
    const size = site.calls[next.call < 0 ? site.calls.length - 1 : next.call];
    const position = positionOf(site, { ...next, row: next.row ?? size.queries - 1 });
    return Math.min(steps.length - 1, Math.max(0, position - prompt + 1));
  }

  function go(index) {
    const site = scene.sites[state.site];
    const place = placesOf(site)[prompt - 1 + index];
    const last = place.row === site.calls[place.call].queries - 1;
    store.set({ call: site.calls.length > 1 ? place.call : -1, row: last && site.calls.length > 1 ? null : place.row, key: null });
  }

  /** The site of the same layer on the other side: decoder layer 2 goes with cross-attention layer 2. */
  function partner(list) {
    if (list.includes(state.site)) return state.site;
    const layer = Math.max(sites.self.indexOf(state.site), sites.cross.indexOf(state.site));
    return list.length ? list[Math.min(layer, list.length - 1)] : null;
  }

  function look() {
    const position = prompt - 1 + at;
    const own = partner(sites.self);
    const over = partner(sites.cross);
    const read = (site) => (site === null ? null : weightsFrom(source, scene, { ...state, site, head: Math.min(state.head, scene.sites[site].heads - 1) }, position, options().how));
    ask(
      () => Promise.all([read(own), read(over)]),
      ([mine, others]) => {
        found = { own: mine, other: others, ownSite: own, otherSite: over };
        paint();
      },
      (words) => {
        found = { own: null, other: null };
        paint();
        said.say(words);
      },
    );
  }

  function paint() {
    const step = steps[at];
    text.tokens.forEach((token, index) => {
      token.classList.toggle("future", index > prompt + at);
      token.classList.toggle("new", index === prompt + at);
    });
    text.choose(prompt + at);
    text.tint(found.own);
    columns.forEach((column, index) => column.classList.toggle("here", index === at));
    fill(share, sharesOf());
    if (found.otherSite !== null && found.otherSite !== undefined) {
      other ||= created(scene.sites[found.otherSite]);
      other.show(found.other);
    }
    likely.show(
      [[step.token, step.probability], ...(step.others || [])].slice(0, LISTED).map(([word, weight], index) => ({ text: tokenText(word, 24), weight, number: percent(weight), chosen: index === 0 })),
    );
    inText.element.hidden = !found.own;
    inText.show(strongest(found.own, LISTED).map(({ index, weight }) => ({
      text: tokenText(labels[index], 24), detail: String(index + 1), weight,
      onEnter: () => text.point(index), onLeave: () => text.point(null), onPick: () => index >= prompt && go(index - prompt),
    })));
    inSource.element.hidden = !found.other;
    inSource.show(strongest(found.other, LISTED).map(({ index, weight }) => ({ text: tokenText(other.labels[index], 24), detail: String(index + 1), weight })));
    beams.show(step.beams);
    said.say(whose());
    compareHeads();
  }

  /** Where every head of the layer looked when it wrote this token. */
  function compareHeads() {
    const index = found.ownSite ?? found.otherSite;
    const site = scene.sites[index];
    heads.element.hidden = !site || site.heads < 2 || site.heads > CARDS;
    if (heads.element.hidden) return;
    const asked = state;
    const names = index === found.ownSite ? labels : other.labels;
    askHeads(
      () => Promise.all(Array.from({ length: site.heads }, (_, head) => weightsFrom(source, scene, { ...state, site: index, head }, prompt - 1 + at))),
      (lines) => asked === state && heads.show(lines, names, state.head, `The same step in all heads of ${site.label || site.name}`),
      () => (heads.element.hidden = true),
    );
  }

  function whose() {
    const site = found.ownSite ?? found.otherSite ?? state.site;
    const name = options().how === "mean" ? `${scene.sites[site].label} · mean of ${scene.sites[site].heads} heads` : headText(scene, site, state.head);
    return `“${tokenText(steps[at].token, 40)}” with ${percent(steps[at].probability)}   ·   weights: ${name}`;
  }

  /** How the weight divides between the prompt and what the model wrote itself. */
  function sharesOf() {
    if (!found.own) return [];
    let early = 0;
    let late = 0;
    found.own.forEach((weight, index) => (index < prompt ? (early += weight) : (late += weight)));
    const whole = early + late || 1;
    const part = (name, value, words) => h("span", { class: `share ${name}`, style: { flexGrow: String(Math.max(0.001, value / whole)) }, title: words });
    const cache = `cache of ${found.own.length} ${found.own.length === 1 ? "key" : "keys"}`;
    return [
      h("span", { class: "share-bar", "aria-hidden": "true" }, part("early", early, begins), part("late", late, "written")),
      h("span", {}, `${Math.round((100 * early) / whole)} % of the weight on the ${begins}, ${Math.round((100 * late) / whole)} % on what it wrote itself (${cache})`),
    ];
  }

  /** What is looked at besides the text: a picture, or the source's words. */
  function created(site) {
    const count = site.calls[0].keys;
    const names = labelsOf(scene, state.variant, site.columns, count);
    if (site.columns === "patches" && scene.image) {
      const overlay = createOverlay({ image: scene.image, palette });
      fill(elsewhere, h("section", { class: "text" }, h("h3", {}, "Picture"), overlay.element));
      return { labels: names, show: (weights) => overlay.show(weights && weights.subarray(scene.image.skip)), repaint: () => overlay.repaint() };
    }
    const words = createText({ title: "Source", kind: site.columns === kind ? "source" : site.columns, labels: names, palette, onEnter: (index) => tellWeight(index, names, found.other) });
    fill(elsewhere, words.element);
    return { labels: names, show: words.tint, repaint: words.repaint };
  }

  function point(index) {
    tellWeight(index, labels, found.own);
  }

  function tellWeight(index, names, weights) {
    if (index === null || !weights || weights[index] === undefined) return said.say(whose());
    return said.say(`writing “${tokenText(steps[at].token, 24)}” looked at “${tokenText(names[index], 24)}” (${index + 1}) with ${weightText(weights[index])}`);
  }

  return {
    element,
    update(next, changed) {
      state = next;
      if (!sites.all.includes(state.site)) {
        // An encoder layer has no steps. After this round of listeners, so that none of them sees an old state last.
        queueMicrotask(() => store.set({ site: (sites.self.length ? sites.self : sites.cross).at(-1), row: null, call: -1 }));
        return;
      }
      at = stepOf(state);
      how.set(options().how);
      how.element.hidden = scene.sites[state.site].heads < 2;
      play.set(at);
      if (changed.has("theme") || changed.has("scale")) {
        text.repaint();
        if (other) other.repaint();
      }
      look();
    },
    onKey(event) {
      if (text.onKey(event) || play.onKey(event)) return true;
      if (event.key === "m") set({ how: options().how === "head" ? "mean" : "head" });
      else if (event.key === "Home") go(0);
      else if (event.key === "End") go(steps.length - 1);
      else return false;
      return true;
    },
    difference: () => false,
    drawing: () => traced(element, palette),
    table() {
      const of = (weights, names, where) => Array.from(weights || [], (weight, index) => [at + 1, steps[at].token, steps[at].probability, where, index + 1, names[index], weight]);
      const rows = [...of(found.own, labels, "text"), ...(other ? of(found.other, other.labels, "source") : [])];
      return { head: ["step", "token", "probability", "looked at in", "position", "looked at", "weight"], rows };
    },
    destroy() {
      play.stop();
      ask.forget();
      askHeads.forget();
    },
  };
}

function percent(share) {
  const value = 100 * share;
  return `${value >= 10 ? value.toFixed(0) : value >= 1 ? value.toFixed(1) : value.toPrecision(1)} %`;
}
