// All heads of a layer for one position: the keys with the most weight.

import { h, fill } from "../dom.js";
import { headCount } from "../availability.js";
import { tokenText, weightText } from "../formatting.js";
import { newest } from "./components.js";
import { strongest, weightsFrom } from "./positions.js";

const LISTED = 3;
const CARDS = 32; // more heads than this are not shown side by side

/** `look(state, site, position, labels, what)` shows the heads of a site (its number); `hide()`; `onPick(head)`. */
export function createHeads({ scene, source, store, palette, onPick }) {
  const ask = newest();
  const heading = h("h3", {});
  const grid = h("div", { class: "heads-grid" });
  const element = h("section", { class: "heads", hidden: true, data: { testid: "heads" } }, heading, grid);

  let facts = { variant: null, of: () => null };
  let shown = {};

  function word({ index, weight }, labels) {
    const style = { background: palette.css(weight), color: palette.ink(weight) };
    return h(
      "span",
      { class: "head-line" },
      h("span", { class: "head-word", style }, tokenText(labels[index], 16)),
      h("span", { class: "head-number" }, weightText(weight)),
    );
  }

  function card(line, head, labels, here, fact) {
    const looks = {
      class: here ? "head-card here" : "head-card",
      "aria-pressed": String(here),
      data: { testid: `head-${head}` },
    };
    return h(
      "button",
      { type: "button", ...looks, on: { click: () => onPick(head) } },
      h(
        "span",
        { class: "head-name" },
        h("span", {}, `head ${head}`),
        h("span", { class: "head-fact" }, factText(fact)),
      ),
      strongest(line, LISTED).map((found) => word(found, labels)),
    );
  }

  /** Facts of the heads, loaded one by one: the server may need a while, and the weights do not wait. */
  function learn(state) {
    if (facts.variant === state.variant) return;
    facts = { variant: state.variant, of: () => null };
    source.facts({ variant: state.variant }).then(
      (found) => {
        if (facts.variant !== state.variant) return;
        facts = { variant: state.variant, of: found.of };
        draw();
      },
      () => {},
    );
  }

  /** Patterns are those of a whole text: a single step of a generation has none. */
  function factOf(site, head) {
    return scene.sites[site].calls.length > 1 ? null : facts.of(site, head);
  }

  function draw() {
    const { lines, labels, site, head: here } = shown;
    if (!lines) return;
    fill(
      grid,
      lines.map((line, head) => card(line, head, labels, head === here, factOf(site, head))),
    );
  }

  return {
    element,
    hide: () => (element.hidden = true),
    look(state, site, position, labels, what) {
      const { label, name, calls } = scene.sites[site];
      const heads = headCount(scene.sites[site], state.variant);
      element.hidden = heads < 2 || heads > CARDS;
      if (element.hidden) return;
      if (calls.length === 1) learn(state);
      const all = Array.from({ length: heads }, (_, head) => head);
      ask(
        () => Promise.all(all.map((head) => weightsFrom(source, scene, { ...state, site, head }, position))),
        (lines) => {
          if (state !== store.get()) return;
          heading.textContent = `The same ${what} in all heads of ${label || name}`;
          shown = { lines, labels, site, head: state.head };
          draw();
        },
        () => (element.hidden = true),
      );
    },
    forget: () => ask.forget(),
  };
}

/** The pattern of a head, and its importance if measured. */
function factText(fact) {
  if (!fact) return "";
  const measured = fact.importance !== null && fact.importance !== undefined;
  const words = [
    fact.pattern === "mixed" ? "" : fact.pattern,
    measured ? `matters ${weightText(fact.importance)}` : "",
  ];
  return words.filter(Boolean).join(" · ");
}
