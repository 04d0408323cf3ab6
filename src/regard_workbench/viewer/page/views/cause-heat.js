// Shared parts of the sections about causes: a table of coloured cells, a button with its answer, and numbers in words.

import { inWords } from "../causes.js";
import { h, fill } from "../dom.js";

const NUMBERED = 24; // columns up to which cells hold their text

/**
 * A table whose cells are coloured. `columns`: texts; `rows`: [label, values]; `cell(value, row, column)` gives
 * `{text, title, background, color, onPick, wide}`, or null for no cell. Labels of tokens are `turned`.
 */
export function heatTable({ label, unit = "", columns, turned = false, rows, cell, always = false }) {
  const small = always || columns.length <= NUMBERED;
  const made = (value, row, column) => {
    const found = cell(value, row, column);
    if (!found) return h("td", { class: "heat-none" });
    const { text, title, background, color, onPick } = found;
    return h("td", { class: `heat-cell${onPick ? " picks" : ""}`, style: { background, color }, title, on: onPick ? { click: onPick } : {} }, small ? text : "");
  };
  return h("div", { class: "scrolls", tabindex: "0", role: "region", "aria-label": label },
    h("table", { class: `heat${small ? "" : " dense"}` },
      h("thead", {}, h("tr", {}, h("td", {}, unit), columns.map((text) => h("th", { scope: "col" }, h("bdi", { class: turned ? "turned" : "" }, text))))),
      h("tbody", {}, rows.map(([text, values], row) => h("tr", {}, h("th", { scope: "row" }, text), values.map((value, column) => made(value, row, column)))))));
}

/** A section with a button that asks once and then shows what was found: `{element, draw()}`. */
export function askedSection({ title, words, button, busy, testid, ask, found, show }) {
  const status = h("div", { class: "cause-found", role: "status", data: { testid } });
  const press = h("button", { type: "button", class: "button", data: { testid: `${testid}-ask`, trace: "skip" }, on: { click: () => run() } }, button);
  const element = h("section", { class: "cause" }, h("h2", {}, title), h("p", { class: "quiet", data: { trace: "skip" } }, words), press, status);
  const draw = () => {
    const here = found();
    press.hidden = Boolean(here);
    element.dataset.trace = here ? "" : "skip"; // a saved figure has no empty sections
    fill(status, here ? show(here) : null);
  };
  const run = () => {
    press.disabled = true;
    fill(status, busy);
    ask().then(draw, (problem) => fill(status, inWords(problem))).finally(() => {
      press.disabled = false;
    });
  };
  draw();
  return { element, draw };
}

/** The colour of a bar: its length is the effect, so a short one is no paler than can be seen. */
export function barCss(palette, value) {
  return palette.effectCss(Math.sign(value) * Math.max(0.4, Math.abs(value)));
}

/** A number with a true minus sign; zero has none. */
export function signed(text) {
  return /[1-9]/.test(text) ? text.replace("-", "−") : text.replace("-", "");
}

/** A share in per cent; one decimal for small ones. */
export function percent(value) {
  return `${signed((100 * value).toFixed(Math.abs(value) < 0.0995 ? 1 : 0))} %`;
}
