// The token view: point at a token and see what it attends to (tint) and what attends to it (line below), exactly.

import { h, fill } from "../dom.js";
import { headCount } from "../availability.js";
import { createVerdict } from "../causes.js";
import { THROUGH, WHOSE, whoseCells, whoseText } from "../naming.js";
import { tokenText, weightText } from "../formatting.js";
import { createHeads } from "./heads.js";
import { barList, choice, newest, optionsOf, optionsText, readout } from "./components.js";
import { choosing, extentOf, positionsOf, positionOf, spreadOf, strongest, weightsFrom, weightsTo } from "./positions.js";
import { createSides } from "./sequences.js";
import { createTokenEdit } from "./token-edit.js";
import { traced } from "./page-drawing.js";

const USUAL = { how: "head", show: "both" };
const HOW = [
  ["head", "This head", "The weights of the chosen head"],
  ["mean", "Mean of layer", "The mean over all heads of the layer"],
  ["rollout", "Rollout", "How much of each input is in this position after all layers, residual paths included"],
  ["flow", "Flow", "The largest flow from this position to each input through all layers"],
];
const SHOW = [
  ["both", "Both"],
  ["from", "Attends to"],
  ["to", "Attended by"],
];
const ALLOWED = { how: HOW.map(([name]) => name), show: SHOW.map(([name]) => name) };
const LISTED = 8;
const BRIEF = 96; // up to this length there is room for the other heads

export const tokensView = {
  name: "tokens",
  label: "Tokens",
  key: "3",
  calls: false,
  keys: [
    ["[ ]", "pin the token before, the token after"],
    ["Tab", "into the text"],
    ["← → ↑ ↓", "in the text: token by token"],
    ["Enter", "pin or let go"],
    ["m", "head, mean of layer, rollout, flow"],
    ["d", "both, attends to, attended by"],
    ["e", "change the pinned token (live page)"],
  ],
  available: (scene) => scene.sites.some((site) => textual(site.rows) || textual(site.columns)),
  create,
};

function textual(kind) {
  return kind === "tokens" || kind === "targets" || kind === "read";
}

function create(context) {
  const { scene, source, store, palette, input } = context;
  const verdict = createVerdict(context);
  const ask = newest();
  const options = () => optionsOf(store.get().v, USUAL, ALLOWED);
  const worded = (patch) => ({ v: optionsText({ ...options(), ...patch }, USUAL) });
  const set = (patch) => store.set(worded(patch));
  const how = choice({ label: "Whose weights", options: HOW, testid: "how", onChange: (value) => set({ how: value }) });
  const show = choice({ label: "Which way", options: SHOW, testid: "show", onChange: (value) => set({ show: value }) });
  const said = readout("token-readout", "Point at a token; a click pins it.");
  const texts = h("div", { class: "texts" });
  const strips = h("div", { class: "strips" });
  const heads = createHeads({
    scene,
    source,
    store,
    palette,
    onPick: (head) => store.set({ head, ...worded({ how: "head" }) }),
  });
  const from = barList({ title: "Attends to", testid: "attends-to", css: palette.css });
  const to = barList({ title: "Attended by", testid: "attended-by", css: palette.css });
  const edit = createTokenEdit(input);
  const controls = h("div", { class: "controls", data: { trace: "skip" } }, how.element, show.element);
  const element = h(
    "div",
    { class: "sheet tokens-view" },
    h("div", { class: "sheet-top", data: { trace: "bare" } }, controls, said.element, h("div", { data: { trace: "skip" } }, edit.element), strips),
    h(
      "div",
      { class: "split" },
      h("div", { class: "texts" }, texts, heads.element),
      h("aside", { class: "panel" }, from.element, to.element, verdict.element),
    ),
  );
  let state = store.get();
  let site = null;
  let sides = null;
  let hovered = null; // {side, index}
  let found = { from: null, to: null, at: null };

  function build() {
    sides = createSides({ scene, variant: state.variant, site, palette, onEnter: enter, onPick: pick });
    fill(texts, sides.texts);
    fill(strips, sides.strips);
    // Show a default token from the start, without pinning it.
    hovered = { side: "row", index: sides.telling() };
  }

  /** Whether layers can be followed: from tokens to tokens, or through a decoder into its encoder. */
  function followed() {
    return sides.self || (site.cross && scene.sites.some((other) => other.group === "decoder"));
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
    if (held && held.side === side && held.index === index) return store.set({ row: null, key: null });
    if (side === "key") return store.set({ row: null, key: index });
    const patch = choosing(site, index);
    // The newest token of a generation is not a query yet: it can be a key, but not be pinned as a row.
    if (patch.row === null) return held ? store.set({ row: null, key: null }) : look();
    return store.set({ ...patch, key: null });
  }

  function step(by) {
    const { side, index } = pinned() || hovered;
    const next = index + by;
    if (next < 0 || next >= sides[side].labels.length) return;
    pick(side, next);
    sides[side].text.reveal(next);
  }

  /** With one token pinned, the pointer reads the weights between the two. */
  function between(held, other) {
    if (!other || (!sides.self && other.side === held.side)) return said.say(summary());
    const name = ({ side, index }) => `“${tokenText(sides[side].labels[index], 24)}”`;
    const words = [];
    const [given, taken] = [found.from, found.to].map((weights) => (weights ? weights[other.index] : undefined));
    if (given !== undefined) words.push(`${name(held)} → ${name(other)} ${weightText(given)}`);
    if (taken !== undefined) words.push(`${name(other)} → ${name(held)} ${weightText(taken)}`);
    return said.say(words.join("   ·   "));
  }

  function look() {
    const at = pinned() || hovered;
    const wanted = options().how;
    const mode = THROUGH.has(wanted) && !followed() ? "head" : wanted;
    const asked = state;
    sides.choose(at, Boolean(pinned()));
    const given = () => (sides.self || at.side === "row" ? weightsFrom(source, scene, asked, at.index, mode) : null);
    const taken = () => (sides.self || at.side === "key" ? weightsTo(source, scene, asked, at.index, mode) : null);
    ask(
      () => Promise.all([given(), taken()]),
      ([mine, others]) => {
        found = { from: mine, to: others, at, mode };
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
    const { at, mode } = found;
    const { show: way } = options();
    const given = way === "to" ? null : found.from;
    const taken = way === "from" ? null : found.to;
    const unasked = at.side === "row" && !positionsOf(site)[at.index];
    sides.show(given, taken, at);
    list(from, given, "key", unasked ? "This token was generated last, so it is not a query yet." : "");
    list(to, taken, "row", THROUGH.has(mode) ? "Followed from a token back to the input; there is no other way." : "");
    from.element.hidden = way === "to" || (!sides.self && at.side === "key");
    to.element.hidden = way === "from" || (!sides.self && at.side === "row");
    said.say(summary());
    const held = pinned();
    edit.show(held ? site[held.side === "row" ? "rows" : "columns"] : "", held ? sides[held.side].labels : [], held ? held.index : null);
    if (found.from && extentOf(site).keys <= BRIEF) heads.look(state, state.site, at.index, sides.key.labels, "token");
    else heads.hide();
  }

  function list(bars, weights, side, none) {
    const part = sides[side];
    const items = strongest(weights, LISTED).map(({ index, weight }) => ({
      text: tokenText(part.labels[index], 24),
      title: tokenText(part.labels[index], 200),
      detail: String(index),
      weight,
      onEnter: () => part.text.point(index),
      onLeave: () => part.text.point(null),
      onPick() {
        part.text.point(null);
        pick(side, index);
        part.text.reveal(index);
      },
    }));
    const spread =
      weights && side === "key" ? `spread over about ${spreadOf(weights)} of ${weights.length} tokens` : "";
    bars.show(items, items.length ? spread : none);
  }

  function summary() {
    if (!found.at) return "";
    const { side, index } = found.at;
    return `“${tokenText(sides[side].labels[index], 40)}” at ${index}   ·   ${whoseText(scene, state, found.mode)}${pinned() ? "   ·   pinned" : ""}`;
  }

  /** Sites over the same tokens reuse the text element, which keeps the scroll position. */
  function alike(old, now) {
    const same = old.rows === now.rows && old.columns === now.columns && old.cross === now.cross;
    return same && extentOf(old).keys === extentOf(now).keys && extentOf(old).queries === extentOf(now).queries;
  }

  return {
    element,
    update(next, changed) {
      const old = site;
      state = next;
      site = scene.sites[state.site];
      const retold = changed.has("variant") && scene.variants.some((variant) => variant.tokens);
      if (!sides || retold || !alike(old, site)) build();
      verdict.show(state.site);
      how.set(options().how);
      how.enable("mean", headCount(site, state.variant) > 1);
      for (const name of THROUGH) how.enable(name, followed() && !source.embedded);
      show.set(options().show);
      if (changed.has("theme") || changed.has("scale")) sides.repaint();
      look();
    },
    onKey(event) {
      if (sides.onKey(event)) return true;
      const turned = (name) => ALLOWED[name][(ALLOWED[name].indexOf(options()[name]) + 1) % ALLOWED[name].length];
      if (event.key === "m") set({ how: turned("how") });
      else if (event.key === "d") set({ show: turned("show") });
      else if (event.key === "e") edit.focus();
      else if (event.key === "[" || event.key === "]") step(event.key === "[" ? -1 : 1);
      else if (event.key === "Escape" && pinned()) store.set({ row: null, key: null });
      else return false;
      return true;
    },
    difference: () => false,
    subject: () => whoseText(scene, state, found.mode),
    drawing: () => traced(element, palette),
    table() {
      const [rows, keys] = [sides.row.labels, sides.key.labels];
      const at = (weights, index) => (weights && index < weights.length ? weights[index] : "");
      const chosen = found.at ? [found.at.index, sides[found.at.side].labels[found.at.index]] : ["", ""];
      const line = (_, index) => [
        ...whoseCells(scene, state, found.mode),
        ...chosen,
        index,
        rows[index] ?? "",
        keys[index] ?? "",
        at(found.from, index),
        at(found.to, index),
      ];
      const words = ["weight from the chosen token", "weight to the chosen token"];
      const head = [...WHOSE, "chosen position", "chosen token", "position", site.rows, `${site.columns} (looked at)`, ...words];
      return { head, rows: Array.from({ length: Math.max(rows.length, keys.length) }, line) };
    },
    destroy() {
      ask.forget();
      heads.forget();
      verdict.forget();
    },
  };
}
