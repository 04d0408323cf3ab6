// What the answer comes from, asked once for a page and then shown wherever it fits: sweeps of patches, what layers and heads
// say, which inputs count, and whether maps matter.

import { h, fill } from "./dom.js";

/**
 * `{able, says, places, place(), choose(place), found(by), ask(by), patched(), patch(question), watch(f)}`; `able` is false for
 * pages without an open model. What was found is forgotten when another answer is chosen.
 */
export function createCauses(scene, source) {
  const input = scene.input || {};
  const places = input.places || [];
  const listeners = new Set();
  const kept = { place: places.length ? places[0][0] : null, found: new Map(), running: new Map(), patches: null };
  const tell = () => listeners.forEach((f) => f());
  const about = () => (kept.place === null ? {} : { position: kept.place });
  return {
    able: Boolean(input.causes && source.cause),
    says: Boolean(input.says),
    places,
    place: () => kept.place,
    choose(place) {
      Object.assign(kept, { place, found: new Map(), running: new Map(), patches: null });
      tell();
    },
    found: (by) => kept.found.get(by) || null,
    /** The lens, contributions, inputs or faithfulness of the answer; each is computed once. */
    ask(by) {
      const { running, found } = kept;
      if (!running.has(by)) {
        running.set(by, source.cause({ by, ...about() }).then((result) => {
          found.set(by, result);
          tell();
          return result;
        }));
        running.get(by).catch(() => running.delete(by));
      }
      return running.get(by);
    },
    patched: () => kept.patches,
    async patch(question) {
      const place = kept.place;
      const result = await source.cause({ ...question, ...about() });
      if (place === kept.place) kept.patches = { question, result };
      tell();
      return result;
    },
    watch(f) {
      listeners.add(f);
      return () => listeners.delete(f);
    },
  };
}

/** A number of a map beside that of random maps. */
export function againstText({ value, low, high }) {
  const text = (number) => number.toFixed(3).replace(/^-(?=.*[1-9])/, "−").replace(/^-/, "");
  return `${text(value)} (random ${text(low)} to ${text(high)})`;
}

/** In one sentence whether a map says what the answer was drawn from. */
export function verdictText(map, draws) {
  if (!map) return "This layer does not attend over the inputs, so its map cannot be judged.";
  return map.matters
    ? `Matters: removing what it marks changes the answer more, and keeping only that changes it less, than for 97.5 % of ${draws} random maps.`
    : `No better than random: of ${draws} random maps, many mark inputs that the answer needs as much.`;
}

/** Beside a map: whether it matters, or a button that finds out. `{element, show(site), forget()}`. */
export function createVerdict({ causes }) {
  const button = h("button", { type: "button", class: "button", data: { testid: "judge" }, on: { click: () => ask() } }, "Does this layer’s map matter?");
  const words = h("div", { class: "verdict-words", role: "status", data: { testid: "verdict" } });
  const element = h("section", { class: "verdict", hidden: !causes.able, "aria-label": "Faithfulness" }, words, button);
  let shown = null;
  const draw = () => {
    const judged = causes.found("faithfulness");
    button.hidden = Boolean(judged);
    if (!judged || shown === null) return;
    const map = judged.maps.find((one) => one.site === shown) || null;
    fill(
      words,
      h("h3", { class: "label" }, "Does this layer’s map matter?"),
      h("p", {}, verdictText(map, judged.draws)),
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
    causes.ask("faithfulness").then(draw, (problem) => fill(words, problem.message)).finally(() => {
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
