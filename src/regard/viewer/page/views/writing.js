// How a generation lies in the sites: which of them wrote, and where the query stands that wrote a given token.

import { placesOf, positionOf } from "./places.js";
import { labelsOf } from "./text.js";

const WRITTEN = ["targets", "read"];

/** The sites that took part in writing: `self` looks at what was written before, `cross` at something else. */
export function writersOf(scene) {
  const { prompt, steps } = scene.generation;
  const twoSided = scene.sites.some((site) => WRITTEN.includes(site.rows));
  const all = [];
  scene.sites.forEach((site, index) => {
    const places = placesOf(site);
    const writes = twoSided ? WRITTEN.includes(site.rows) : site.rows === "tokens";
    if (writes && places[prompt - 1] && places[prompt + steps.length - 2]) all.push(index);
  });
  const crosses = (index) => scene.sites[index].cross || scene.sites[index].rows !== scene.sites[index].columns;
  return { all, self: all.filter((index) => !crosses(index)), cross: all.filter(crosses) };
}

/** The story of a generation; step i was written by the query at position `prompt − 1 + i`. */
export function writingOf(scene) {
  const { prompt, steps } = scene.generation;
  const sites = writersOf(scene);
  // What a decoder has read begins with its start token; a list of targets begins with the first word written.
  const own = scene.sites[sites.self.length ? sites.self[0] : sites.cross[0]].rows;
  const kind = own === "targets" && scene.tokens.read ? "read" : own;
  return {
    sites,
    prompt,
    steps,
    kind,
    begins: kind === "tokens" ? "prompt" : "start",
    // Labels may hold the prompt only: what was written is known from the steps.
    labels: [...labelsOf(scene, 0, kind, prompt), ...steps.map((step) => step.token)],
    query: (step) => prompt - 1 + step,

    /** The step a state stands for: the query it names has written the token behind it. */
    stepOf(state) {
      const site = scene.sites[state.site];
      const size = site.calls[state.call < 0 ? site.calls.length - 1 : state.call];
      const position = positionOf(site, { ...state, row: state.row ?? size.queries - 1 });
      return Math.min(steps.length - 1, Math.max(0, position - prompt + 1));
    },

    /** The patch of the state that goes to a step; the last row of a call needs no naming. */
    going(state, step) {
      const site = scene.sites[state.site];
      const { call, row } = placesOf(site)[prompt - 1 + step];
      const cached = site.calls.length > 1;
      const last = row === site.calls[call].queries - 1;
      return { call: cached ? call : -1, row: cached && last ? null : row, key: null };
    },

    /** The site of the same layer in a list: decoder layer 2 goes with cross-attention layer 2. */
    partner(list, site) {
      if (list.includes(site)) return site;
      const layer = Math.max(sites.self.indexOf(site), sites.cross.indexOf(site));
      return list.length ? list[Math.min(layer, list.length - 1)] : null;
    },
  };
}
