// What the answer comes from, asked once for a page and then shown wherever it fits: sweeps of patches, what layers and heads
// say, which inputs count, and whether maps matter.

import { h, fill } from "./dom.js";

/**
 * `{able, says, places, place(), choose(place), found(question), ask(question), sweep(), swept(what), watch(f)}`; `able` is false
 * for pages without an open model. Answers are kept by their question and the place that it is about.
 */
export function createCauses(scene, source) {
  const input = scene.input || {};
  const places = input.places || [];
  const listeners = new Set();
  const kept = { place: places.length ? places[0][0] : null, found: new Map(), running: new Map(), sweep: null };
  const tell = () => listeners.forEach((f) => f());
  const about = (question) => (kept.place === null ? question : { ...question, position: kept.place });
  return {
    able: Boolean(input.causes && source.cause),
    says: Boolean(input.says),
    places,
    place: () => kept.place,
    choose(place) {
      kept.place = place;
      tell();
    },
    /** What was answered to a question, about the place that is chosen now; null before. */
    found: (question) => kept.found.get(JSON.stringify(about(question))) || null,
    /** A promise of the answer; each question is computed once. */
    ask(question) {
      const { running, found } = kept;
      const key = JSON.stringify(about(question));
      if (!running.has(key)) {
        running.set(key, source.cause(about(question)).then((result) => {
          found.set(key, result);
          tell();
          return result;
        }));
        running.get(key).catch(() => running.delete(key));
      }
      return running.get(key);
    },
    /** The text and measure of the newest sweep of patches, `{against, measure}`; null before one. */
    sweep: () => kept.sweep,
    swept(sweep) {
      kept.sweep = sweep;
    },
    watch(f) {
      listeners.add(f);
      return () => listeners.delete(f);
    },
  };
}

export const FAITHFULNESS = { by: "faithfulness" };

/** A number of a map beside that of random maps, and how many of these are as good. */
export function againstText({ value, low, high, p }) {
  const text = (number) => number.toFixed(3).replace(/^-(?=.*[1-9])/, "−").replace(/^-/, "");
  return `${text(value)} (random ${text(low)} to ${text(high)}; ${pText(p)})`;
}

/** A p value; one that rounds to zero is smaller than what is printed. */
export function pText(p) {
  return p < 0.0005 ? "p < 0.001" : `p = ${p.toFixed(3)}`;
}

/** In one or two sentences whether a map was shown to say what the answer was drawn from. */
export function verdictText(map, { draws, maps }) {
  if (!map) return "The keys of this layer are not the inputs, so its map cannot be judged.";
  const corrected = `${pText(map.p_holm)}${maps.length > 1 ? ` after Holm’s correction for ${maps.length} maps` : ""}`;
  return map.matters
    ? `Matters: removing what it marks changes the answer more, and keeping only that changes it less, than random maps do (${corrected}; ${draws} random maps).`
    : `Not shown to matter with ${draws} random maps (${corrected}). That does not show that the map is as good as random.`;
}

/** A message of the library without the name of the argument that it begins with. */
export function inWords(problem) {
  const text = problem.message.replace(/^[a-z_]+: /, "");
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** Beside a map: whether it matters, or a button that finds out. `{element, show(site), forget()}`. */
export function createVerdict({ causes }) {
  const button = h("button", { type: "button", class: "button", data: { testid: "judge" }, on: { click: () => ask() } }, "Does this layer’s map matter?");
  const words = h("div", { class: "verdict-words", role: "status", data: { testid: "verdict" } });
  const element = h("section", { class: "verdict", hidden: !causes.able, "aria-label": "Faithfulness" }, words, button);
  let shown = null;
  const draw = () => {
    const judged = causes.found(FAITHFULNESS);
    button.hidden = Boolean(judged);
    if (!judged && !button.disabled) fill(words);
    if (!judged || shown === null) return;
    const map = judged.maps.find((one) => one.site === shown) || null;
    fill(
      words,
      h("h3", { class: "label" }, "Does this layer’s map matter?"),
      h("p", {}, verdictText(map, judged)),
      map
        ? h("dl", { class: "facts" },
            h("dt", { title: "how far the answer falls without the inputs that the layer’s map marks" }, "without them"), h("dd", {}, againstText(map.comprehensiveness)),
            h("dt", { title: "how far the answer falls with nothing but the inputs that the layer’s map marks" }, "only them"), h("dd", {}, againstText(map.sufficiency)))
        : null,
    );
  };
  const ask = () => {
    button.disabled = true;
    fill(words, "comparing with random maps …");
    causes.ask(FAITHFULNESS).then(draw, (problem) => fill(words, inWords(problem))).finally(() => {
      button.disabled = false;
    });
  };
  const forget = causes.watch(draw);
  return {
    element,
    show(site) {
      shown = site;
      draw();
    },
    forget,
  };
}
