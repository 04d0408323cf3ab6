// The list of keyboard shortcuts, opened with "?".

import { h } from "./dom.js";

const EVERYWHERE = [
  ["1 … 9", "open a view"],
  ["← →", "head before, head after"],
  ["↑ ↓", "layer before, layer after"],
  ["[ ]", "step before, step after"],
  ["l", "scale: logarithmic, root, linear"],
  ["t", "light, dark, as the system"],
  ["i", "another input (live page)"],
  ["s", "save or copy"],
  ["?", "this sheet"],
  ["Esc", "close, let go"],
];

/** `{element, open(), close()}`; `views` may add their own `keys: [[keys, words], …]`. */
export function createHelp(views) {
  const table = (rows) => h("dl", {}, rows.map(([keys, words]) => [h("dt", {}, keys.split(" ").map((key) => (key === "…" ? " … " : h("kbd", {}, key)))), h("dd", {}, words)]));
  const parts = views.filter((view) => view.keys).map((view) => h("section", {}, h("h3", {}, view.label), table(view.keys)));
  const close = h("button", { type: "button", class: "plain", "aria-label": "Close", on: { click: () => element.close() } }, "Close");
  const element = h(
    "dialog", { class: "help", "aria-label": "Keys", data: { testid: "help" } },
    h("div", { class: "help-top" }, h("h2", {}, "Keys"), close),
    h("div", { class: "help-parts" }, h("section", {}, h("h3", {}, "Everywhere"), table(EVERYWHERE)), parts),
    h("p", { class: "help-foot" }, "The URL of this page holds its state: copy it to return to the same view."),
  );
  // A click outside closes it.
  element.addEventListener("click", (event) => {
    if (event.target === element) element.close();
  });
  return { element, toggle: () => (element.open ? element.close() : element.showModal()) };
}
