// The token view: point at a token and see what it attends to (tint) and what attends to it (line below), exactly.

import { h, fill, notice } from "../dom.js";
import { headText, tokenText, weightText } from "../words.js";
import { choosing, extentOf, positionOf, strongest, weightsFrom, weightsTo } from "./places.js";
import { barList, choice, newest, optionsOf, optionsText, readout } from "./parts.js";
import { createHeads } from "./heads.js";
import { createProfile } from "./profile.js";
import { createText, labelsOf } from "./text.js";
import { traced } from "./tracing.js";

const USUAL = { how: "head", show: "both" };
const HOW = [["head", "This head", "The weights of the chosen head"], ["mean", "Mean of layer", "The mean over all heads of the layer"], ["rollout", "Rollout", "Attention followed through all layers, residual paths included"]];
const SHOW = [["both", "Both"], ["from", "Attends to"], ["to", "Attended by"]];
const ALLOWED = { how: HOW.map(([name]) => name), show: SHOW.map(([name]) => name) };
const LISTED = 8;
const BRIEF = 96; // up to this length there is room for the other heads
const PROFILED = 200; // from this length on a strip shows the whole text at once

export const tokensView = {
  name: "tokens",
  label: "Tokens",
  key: "3",
  keys: [["Tab", "into the text"], ["← → ↑ ↓", "in the text: token by token"], ["Enter", "pin or let go"], ["m", "head, mean of layer, rollout"], ["d", "both, attends to, attended by"]],
  available: (scene) => scene.sites.some((site) => textual(site.rows) || textual(site.columns)),
  create,
};

function textual(kind) {
  return kind === "tokens" || kind === "targets" || kind === "read";
}

function create({ scene, source, store, palette }) {
  const ask = newest();
  const set = (patch) => store.set({ v: optionsText({ ...options(), ...patch }, USUAL) });
  const options = () => optionsOf(store.get().v, USUAL, ALLOWED);
  const how = choice({ label: "Whose weights", options: HOW, value: "head", testid: "how", onChange: (value) => set({ how: value }) });
  const show = choice({ label: "Which way", options: SHOW, value: "both", testid: "show", onChange: (value) => set({ show: value }) });
  const said = readout("token-readout", "Point at a token; a click pins it.");
  const texts = h("div", { class: "texts" });
  const strips = h("div", { class: "strips" });
  const others = createHeads({ palette, onPick: (head) => store.set({ head, v: optionsText({ ...options(), how: "head" }, USUAL) }) });
  const askOthers = newest();
  const from = barList({ title: "Attends to", testid: "attends-to", css: palette.css });
  const to = barList({ title: "Attended by", testid: "attended-by", css: palette.css });
  const panel = h("aside", { class: "panel" }, from.element, to.element);
  const element = h("div", { class: "sheet tokens-view" }, 
    h("div", { class: "sheet-top", data: { trace: "bare" } }, h("div", { class: "controls", data: { trace: "skip" } }, how.element, show.element), said.element, strips),
    h("div", { class: "split" }, h("div", { class: "texts" }, texts, others.element), panel));
  let state = store.get();
  let site = null;
  let sides = null; // {row: text, key: text, self}
  let hovered = null; // {side, index}
  let found = { from: null, to: null, at: null };

  function build() {
    site = scene.sites[state.site];
    const { queries, keys } = extentOf(site);
    const self = !site.cross && site.rows === site.columns;
    const whole = Math.max(queries, keys, self ? (scene.tokens[site.rows] || []).length : 0);
    const block = (side, kind, count, title) => {
      const labels = labelsOf(scene, state.variant, kind, count);
      const text = createText({ title, kind, labels, palette, onEnter: (index) => enter(side, index), onPick: (index) => pick(side, index) });
      const strip = count >= PROFILED ? createProfile({ count, palette, onPick: (index) => text.reveal(index) }) : null;
      return { text, labels, strip };
    };
    const row = block("row", site.rows, self ? whole : queries, self ? "" : `Looks from here (${site.rows})`);
    const key = self ? row : block("key", site.columns, keys, `Is looked at (${site.columns})`);
    sides = { row, key, self };
    fill(texts, [...new Set([key, row])].map((part) => part.text.element));
    fill(strips, [...new Set([key, row])].map((part) => part.strip && part.strip.element));
    // Something is shown from the start, though nothing is pinned.
    hovered = { side: "row", index: telling(row.labels, queries) };
    how.enable("rollout", self);
  }

  function pinned() {
    const position = positionOf(site, state);
    if (position !== null) return { side: "row", index: position };
    return state.key !== null && !sides.self ? { side: "key", index: state.key } : null;
  }

  function enter(side, index) {
    const held = pinned();
    if (held) return between(held, index === null ? null : { side, index });
    if (index === null) return undefined;
    hovered = { side, index };
    return look();
  }

  function pick(side, index) {
    const held = pinned();
    hovered = { side, index };
    if (held && held.side === side && held.index === index) store.set({ row: null, key: null });
    else if (side === "key") store.set({ row: null, key: index });
    else {
      const patch = choosing(site, index);
      // The newest token of a generation has asked nothing yet: it can be looked at, not pinned as a row.
      if (patch.row === null) look();
      else store.set({ ...patch, key: null });
    }
  }

  /** With one token pinned, the pointer reads the weights between the two. */
  function between(held, other) {
    if (!other || (sides.self ? false : other.side === held.side)) return said.say(summary());
    const name = (side, index) => `“${tokenText(sides[side].labels[index], 24)}”`;
    const words = [];
    const [there, here] = [name(other.side, other.index), name(held.side, held.index)];
    if (found.from && found.from[other.index] !== undefined) words.push(`${here} → ${there} ${weightText(found.from[other.index])}`);
    if (found.to && found.to[other.index] !== undefined) words.push(`${there} → ${here} ${weightText(found.to[other.index])}`);
    return said.say(words.join("   ·   "));
  }

  function look() {
    const at = pinned() || hovered;
    const chosen = options();
    const mode = sides.self ? chosen.how : chosen.how === "rollout" ? "head" : chosen.how;
    sides.row.text.choose(at.side === "row" ? at.index : null, Boolean(pinned()));
    if (!sides.self) sides.key.text.choose(at.side === "key" ? at.index : null, Boolean(pinned()));
    const asked = state;
    const asksFrom = sides.self || at.side === "row";
    const asksTo = sides.self || at.side === "key";
    ask(
      () => Promise.all([asksFrom ? weightsFrom(source, scene, state, at.index, mode) : null, asksTo ? weightsTo(source, scene, state, at.index, mode) : null]),
      ([given, taken]) => {
        found = { from: given, to: taken, at, mode };
        paint();
      },
      (words) => {
        found = { from: null, to: null, at, mode };
        paint();
        said.say(words);
      },
      () => asked === state,
    );
  }

  function paint() {
    const { show: way } = options();
    const given = way === "to" ? null : found.from;
    const taken = way === "from" ? null : found.to;
    sides.key.text.tint(given);
    sides.row.text.underline(taken);
    if (!sides.self) sides.row.text.tint(null);
    for (const side of [sides.key, sides.row]) if (side.strip) side.strip.show(side === sides.key ? given : null, side === sides.row ? taken : null, found.at.index);
    if (sides.self && sides.row.strip) sides.row.strip.show(given, taken, found.at.index);
    list(from, given, sides.key, "key", "Attends to", found.from === null && found.at.side === "row" ? "This token was written last; nothing has been asked from it yet." : "");
    list(to, taken, sides.row, "row", "Attended by", found.mode === "rollout" ? "Rollout is followed from a token back to the input only." : "");
    from.element.hidden = way === "to" || (!sides.self && found.at.side === "key");
    to.element.hidden = way === "from" || (!sides.self && found.at.side === "row");
    said.say(summary());
    compareHeads();
  }

  /** Beside one head, for texts that leave room: where all the heads of the layer look from the same token. */
  function compareHeads() {
    const { at } = found;
    others.element.hidden = site.heads < 2 || extentOf(site).keys > BRIEF || (!sides.self && at.side === "key") || !found.from;
    if (others.element.hidden) return;
    const asked = state;
    askOthers(
      () => Promise.all(Array.from({ length: site.heads }, (_, head) => weightsFrom(source, scene, { ...state, head }, at.index))),
      (lines) => asked === state && others.show(lines, sides.key.labels, state.head, `The same token in all heads of ${site.label || site.name}`),
      () => others.show([], [], 0, ""),
    );
  }

  function list(bars, weights, part, side, title, none) {
    const items = strongest(weights, LISTED).map(({ index, weight }) => ({
      text: tokenText(part.labels[index], 24), title: tokenText(part.labels[index], 200), detail: String(index + 1), weight,
      onEnter: () => part.text.point(index),
      onLeave: () => part.text.point(null),
      onPick: () => { part.text.point(null); pick(side, index); part.text.reveal(index); },
    }));
    const spread = weights && side === "key" ? `spread over about ${spreadOf(weights)} ${weights.length > 1 ? "tokens" : "token"} of ${weights.length}` : "";
    bars.show(items, items.length ? spread : none, title);
  }

  function summary() {
    if (!found.at) return "";
    const whose = { head: headText(scene, state.site, state.head), mean: `${site.label || site.name} · mean of ${site.heads} heads`, rollout: "rollout through all layers" }[found.mode];
    return `“${tokenText(sides[found.at.side].labels[found.at.index], 40)}” at ${found.at.index + 1}   ·   ${whose}${pinned() ? "   ·   pinned" : ""}`;
  }

  return {
    element,
    update(next, changed) {
      state = next;
      if (!scene.sites.length) return fill(element, notice("Nothing was attended to", "The model ran without a single attention call."));
      if (!sides || changed.has("site") || (changed.has("variant") && scene.variants.some((variant) => variant.tokens))) {
        const old = site;
        site = scene.sites[state.site];
        // Sites over the same tokens keep the text that stands there, and with it the place of the reader.
        if (!sides || old === site || old.rows !== site.rows || old.columns !== site.columns || old.cross !== site.cross || extentOf(old).keys !== extentOf(site).keys) build();
      }
      how.set(options().how);
      how.enable("mean", site.heads > 1);
      show.set(options().show);
      if (changed.has("theme") || changed.has("scale")) for (const part of [sides.row, sides.key]) part.text.repaint();
      return look();
    },
    onKey(event) {
      if (sides && (sides.row.text.onKey(event) || sides.key.text.onKey(event))) return true;
      const turn = (name) => set({ [name]: ALLOWED[name][(ALLOWED[name].indexOf(options()[name]) + 1) % ALLOWED[name].length] });
      if (event.key === "m") turn("how");
      else if (event.key === "d") turn("show");
      else if (event.key === "Escape" && pinned()) store.set({ row: null, key: null });
      else return false;
      return true;
    },
    drawing: () => traced(element, palette),
    table() {
      const count = Math.max(sides.row.labels.length, sides.key.labels.length);
      const at = (weights, index) => (weights && index < weights.length ? weights[index] : "");
      const rows = Array.from({ length: count }, (_, index) => [index + 1, sides.row.labels[index] ?? "", sides.key.labels[index] ?? "", at(found.from, index), at(found.to, index)]);
      return { head: ["position", site.rows, `${site.columns} (looked at)`, "weight from the chosen token", "weight to the chosen token"], rows };
    },
    difference: () => false,
    destroy() {
      ask.forget();
      askOthers.forget();
    },
  };
}

/** A position near the middle that holds a word rather than a sign. */
function telling(labels, count) {
  const middle = Math.floor(count / 2);
  const near = Array.from({ length: count }, (_, index) => index).sort((a, b) => Math.abs(a - middle) - Math.abs(b - middle));
  return near.find((index) => /\p{L}{3}/u.test(labels[index]) && !/^[[<]/.test(labels[index])) ?? middle;
}

/** e to the entropy: over how many tokens the weight is spread, in effect. */
function spreadOf(weights) {
  let entropy = 0;
  for (const weight of weights) if (weight > 0) entropy -= weight * Math.log(weight);
  const count = Math.exp(entropy);
  return count < 10 ? count.toFixed(1) : String(Math.round(count));
}
