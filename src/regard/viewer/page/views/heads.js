// All heads of a layer at once, from one token: the keys each of them looks at most.

import { h, fill } from "../dom.js";
import { tokenText, weightText } from "../words.js";
import { strongest } from "./places.js";

const LISTED = 3;

/** `show(lines, labels, head, title)`: one row of weights for each head; `onPick(head)`. */
export function createHeads({ palette, onPick }) {
  const heading = h("h3", {});
  const grid = h("div", { class: "heads-grid" });
  const card = (line, head, labels, here) =>
    h("button", { type: "button", class: here ? "head-card here" : "head-card", "aria-pressed": String(here), data: { testid: `head-${head}` }, on: { click: () => onPick(head) } },
      h("span", { class: "head-name" }, `head ${head + 1}`),
      strongest(line, LISTED).map(({ index, weight }) =>
        h("span", { class: "head-line" },
          h("span", { class: "head-word", style: { background: palette.css(weight), color: palette.ink(weight) } }, tokenText(labels[index], 16)),
          h("span", { class: "head-number" }, weightText(weight)))));
  return {
    element: h("section", { class: "heads", data: { testid: "heads" } }, heading, grid),
    show(lines, labels, head, title) {
      heading.textContent = title;
      fill(grid, lines.map((line, index) => card(line, index, labels, index === head)));
    },
  };
}
