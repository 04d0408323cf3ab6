// What the answer comes from, asked once for a page and then shown wherever it fits: sweeps of patches, and whether maps matter.

import { h, fill } from "./dom.js";

/** `{able, judged(), judge(), patch(question), watch(f)}`; `able` is false for pages without an open model. */
export function createCauses(scene, source) {
  const listeners = new Set();
  const found = { faithfulness: null, running: null, patches: null };
  const tell = () => listeners.forEach((f) => f());
  return {
    able: Boolean(scene.input && scene.input.causes && source.cause),
    judged: () => found.faithfulness,
    patched: () => found.patches,
    /** The maps of all layers against random ones; computed once. */
    judge() {
      if (!found.running) {
        found.running = source.cause({ by: "faithfulness" }).then((result) => {
          found.faithfulness = { ...result, of: new Map(result.maps.map((map) => [map.site, map])) };
          tell();
          return found.faithfulness;
        });
        found.running.catch(() => {
          found.running = null;
        });
      }
      return found.running;
    },
    async patch(question) {
      found.patches = { question, result: await source.cause(question) };
      tell();
      return found.patches.result;
    },
    watch(f) {
      listeners.add(f);
      return () => listeners.delete(f);
    },
  };
}

/** A number of a map beside that of random maps. */
export function againstText({ value, low, high }) {
  return `${value.toFixed(3)} (random ${low.toFixed(3)} to ${high.toFixed(3)})`;
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
    const judged = causes.judged();
    button.hidden = Boolean(judged);
    if (!judged || shown === null) return;
    const map = judged.of.get(shown) || null;
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
    causes.judge().then(draw, (problem) => fill(words, problem.message)).finally(() => {
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
