// All heads of a layer at once, from one position: the keys each of them looks at most.

import { h, fill } from "../dom.js";
import { tokenText, weightText } from "../words.js";
import { newest } from "./parts.js";
import { strongest, weightsFrom } from "./places.js";

const LISTED = 3;
const CARDS = 32; // more heads than this are not shown side by side

/** `look(state, site, position, labels, what)` shows the heads of a site (its number); `hide()`; `onPick(head)`. */
export function createHeads({ scene, source, store, palette, onPick }) {
  const ask = newest();
  const heading = h("h3", {});
  const grid = h("div", { class: "heads-grid" });
  const element = h("section", { class: "heads", hidden: true, data: { testid: "heads" } }, heading, grid);

  function word({ index, weight }, labels) {
    const style = { background: palette.css(weight), color: palette.ink(weight) };
    return h("span", { class: "head-line" },
      h("span", { class: "head-word", style }, tokenText(labels[index], 16)),
      h("span", { class: "head-number" }, weightText(weight)));
  }

  function card(line, head, labels, here) {
    const looks = { class: here ? "head-card here" : "head-card", "aria-pressed": String(here), data: { testid: `head-${head}` } };
    return h("button", { type: "button", ...looks, on: { click: () => onPick(head) } },
      h("span", { class: "head-name" }, `head ${head + 1}`),
      strongest(line, LISTED).map((found) => word(found, labels)));
  }

  return {
    element,
    hide: () => (element.hidden = true),
    look(state, site, position, labels, what) {
      const facts = scene.sites[site];
      element.hidden = facts.heads < 2 || facts.heads > CARDS;
      if (element.hidden) return;
      const all = Array.from({ length: facts.heads }, (_, head) => head);
      ask(
        () => Promise.all(all.map((head) => weightsFrom(source, scene, { ...state, site, head }, position))),
        (lines) => {
          if (state !== store.get()) return;
          heading.textContent = `The same ${what} in all heads of ${facts.label || facts.name}`;
          fill(grid, lines.map((line, head) => card(line, head, labels, head === state.head)));
        },
        () => (element.hidden = true),
      );
    },
    forget: () => ask.forget(),
  };
}
