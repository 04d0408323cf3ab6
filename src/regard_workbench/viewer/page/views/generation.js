// How a generation maps to sites: which sites belong to it, and which query wrote a token.

import { positionsOf, positionOf } from "./positions.js";
import { labelsOf } from "./text.js";

const WRITTEN = ["targets", "read"];

/** The sites of a generation: `self` attends to earlier tokens, `cross` to another sequence. */
export function writersOf(scene) {
  const { prompt, steps } = scene.generation;
  const twoSided = scene.sites.some((site) => WRITTEN.includes(site.rows));
  const all = [];
  scene.sites.forEach((site, index) => {
    const found = positionsOf(site);
    const writes = twoSided ? WRITTEN.includes(site.rows) : site.rows === "tokens";
    if (writes && found[prompt - 1] && found[prompt + steps.length - 2]) all.push(index);
  });
  const crosses = (index) => scene.sites[index].cross || scene.sites[index].rows !== scene.sites[index].columns;
  return { all, self: all.filter((index) => !crosses(index)), cross: all.filter(crosses) };
}

/** The steps of a generation; token i was written by the query at position `prompt − 1 + i`. */
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
    // Labels may hold only the prompt; generated tokens come from the steps.
    labels: [...labelsOf(scene, 0, kind, prompt), ...steps.map((step) => step.token)],
    query: (step) => prompt - 1 + step,

    /** The step of a state: its query has written the next token. */
    stepOf(state) {
      const site = scene.sites[state.site];
      const size = site.calls[state.call < 0 ? site.calls.length - 1 : state.call];
      const position = positionOf(site, { ...state, row: state.row ?? size.queries - 1 });
      return Math.min(steps.length - 1, Math.max(0, position - prompt + 1));
    },

    /** The state patch that selects a step; the last row of a call is left out. */
    going(state, step) {
      const site = scene.sites[state.site];
      const { call, row } = positionsOf(site)[prompt - 1 + step];
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
