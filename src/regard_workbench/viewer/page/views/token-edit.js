// A field to change the pinned token of a live page: the model runs again, and the page shows what moved.

import { h, fill } from "../dom.js";
import { tokenText } from "../formatting.js";

/** `{element, show(kind, labels, index)}`; hidden where the token is not part of the text, or the page is not live. */
export function createTokenEdit(input) {
  const name = h("bdi", {});
  const field = h("input", { class: "token-field", type: "text", maxlength: 200, spellcheck: "false", autocomplete: "off", "aria-label": "Another word for this token", data: { testid: "token-edit" } });
  const element = h(
    "form",
    { class: "token-edit", hidden: true, on: { submit: (event) => { event.preventDefault(); change(); } } },
    h("span", {}, "Change “", name, "” to"), field, h("button", { type: "submit", class: "button", data: { testid: "token-change" } }, "See what moves"),
  );
  let range = null;

  function change() {
    if (range && field.value !== "") input.edit(range, field.value);
  }

  return {
    element,
    show(kind, labels, index) {
      range = input && kind === "tokens" && index !== null ? input.ranges(labels)[index] || null : null;
      element.hidden = !range;
      if (!range) return;
      const word = tokenText(labels[index], 40);
      if (name.textContent === word) return;
      fill(name, word);
      field.value = "";
    },
    focus: () => !element.hidden && field.focus(),
  };
}
