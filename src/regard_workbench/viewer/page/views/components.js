// Shared components of views: choices, lists with bars, a player, and requests in order.

import { h, fill, isTyping } from "../dom.js";
import { weightText } from "../formatting.js";

/** The view's own options in the URL, "a=1,b=2"; only names and values that `usual` and `allowed` know come back. */
export function optionsOf(text, usual, allowed = {}) {
  const options = { ...usual };
  for (const part of String(text || "").split(",")) {
    const [name, value] = part.split("=");
    if (!(name in usual) || value === undefined) continue;
    if (typeof usual[name] === "number") {
      if (/^-?\d{1,6}(\.\d{1,4})?$/.test(value)) options[name] = Number(value);
    } else if (!allowed[name] || allowed[name].includes(value)) options[name] = value;
  }
  return options;
}

/** The inverse; default values are left out. */
export function optionsText(options, usual) {
  const names = Object.keys(usual).filter((name) => options[name] !== usual[name]);
  return names.map((name) => `${name}=${options[name]}`).join(",");
}

/** A choice of one of a few options. `options`: [value, text, what it means]. */
export function choice({ label, options, value, onChange, testid }) {
  const buttons = options.map(([given, text, title]) =>
    h(
      "button",
      {
        type: "button",
        class: "choice",
        role: "radio",
        title,
        data: { testid: `${testid}-${given}` },
        on: { click: () => onChange(given) },
      },
      text,
    ),
  );
  const set = (chosen) =>
    buttons.forEach((button, index) => button.setAttribute("aria-checked", String(options[index][0] === chosen)));
  const enable = (given, able) => (buttons[options.findIndex((option) => option[0] === given)].hidden = !able);
  set(value);
  return {
    element: h("div", { class: "choices", role: "radiogroup", "aria-label": label, data: { testid } }, buttons),
    set,
    enable,
  };
}

/** A titled list of words with bars and exact weights. Items: `{text, weight, detail, share, onEnter, onPick, testid}`. */
export function barList({ title, testid, css }) {
  const heading = h("h3", {}, title);
  const list = h("ol", { class: "bars" });
  const note = h("p", { class: "quiet" });
  const show = (items, words = "", newTitle = null) => {
    if (newTitle !== null) heading.textContent = newTitle;
    const largest = items.reduce((most, item) => Math.max(most, Math.abs(item.weight)), 0) || 1;
    list.classList.toggle(
      "bare",
      items.every((item) => item.detail === undefined),
    );
    fill(
      list,
      items.map((item) => barItem(item, largest, css)),
    );
    note.textContent = words;
    note.hidden = !words;
  };
  return { element: h("section", { class: "bar-list", data: { testid } }, heading, list, note), show };
}

function barItem(item, largest, css) {
  const bar = h("span", {
    class: "bar",
    style: { width: `${(100 * Math.abs(item.weight)) / largest}%`, background: css(item.weight) },
  });
  const parts = [
    h("span", { class: "bar-text", title: item.title || item.text }, item.text),
    item.detail === undefined ? null : h("span", { class: "bar-detail" }, item.detail),
    h("span", { class: "bar-room", "aria-hidden": "true" }, bar),
    h("span", { class: "bar-number" }, item.number || weightText(item.weight)),
  ];
  const data = item.testid ? { testid: item.testid } : {};
  if (!item.onPick) return h("li", { class: "bar-line", data }, parts);
  const on = {
    click: item.onPick,
    pointerenter: item.onEnter,
    focus: item.onEnter,
    pointerleave: item.onLeave,
    blur: item.onLeave,
  };
  for (const name of Object.keys(on)) if (!on[name]) delete on[name];
  return h(
    "li",
    {},
    h("button", { type: "button", class: `bar-line${item.chosen ? " chosen" : ""}`, data, on }, parts),
  );
}

/** Previous, play, next and a slider over `count` things; keys: [ ] and the space bar. */
export function player({ count, what, testid, onGo, wordsOf, wait = 700 }) {
  let told = -1;
  let at = 0;
  let timer = 0;
  const slider = h("input", {
    type: "range",
    min: 0,
    max: Math.max(0, count - 1),
    step: 1,
    "aria-label": what,
    data: { testid: `${testid}-slider` },
    on: {
      input: () => {
        stop();
        onGo(Number(slider.value));
      },
    },
  });
  const button = (name, text, title, act) =>
    h(
      "button",
      {
        type: "button",
        class: "player-button",
        title,
        "aria-label": title,
        data: { testid: `${testid}-${name}` },
        on: { click: act },
      },
      text,
    );
  const go = (by) => {
    stop();
    onGo(Math.min(count - 1, Math.max(0, at + by)));
  };
  const play = button("play", "▶", "Play (space)", () => toggle());
  const previous = button("prev", "‹", `Previous ${what} ([)`, () => go(-1));
  const next = button("next", "›", `Next ${what} (])`, () => go(1));
  const words = h("output", { class: "player-words", data: { testid: `${testid}-words` } });
  function stop() {
    clearInterval(timer);
    timer = 0;
    play.textContent = "▶";
    play.setAttribute("aria-label", "Play (space)");
  }
  function toggle() {
    if (timer) return stop();
    if (at >= count - 1) onGo(0);
    play.textContent = "❚❚";
    play.setAttribute("aria-label", "Pause (space)");
    timer = setInterval(() => {
      if (at >= count - 1) stop();
      else if (told === at) onGo(at + 1);
    }, wait);
    return undefined;
  }
  return {
    element: h("div", { class: "player", role: "group", "aria-label": what }, previous, play, next, slider, words),
    stop,
    set(index) {
      at = index;
      slider.value = String(index);
      slider.setAttribute("aria-valuetext", wordsOf(index));
      previous.disabled = index <= 0;
      next.disabled = index >= count - 1;
    },
    /** Called when a position is shown: sets its text, and playing continues from there. */
    tell(index) {
      told = index;
      words.textContent = wordsOf(index);
    },
    onKey(event) {
      if (event.key === "[") go(-1);
      else if (event.key === "]") go(1);
      else if (event.key === " " && !isTyping(event) && event.target.tagName !== "BUTTON") toggle();
      else return false;
      return true;
    },
  };
}

/**
 * Sends one request at a time; of those made meanwhile only the newest is sent next, so that a fast pointer does not
 * overload the server. A result that a newer request has overtaken is shown only if `still()` is true. Failures become
 * messages.
 */
export function newest() {
  let next = null;
  let busy = false;
  let life = 0;
  const run = async () => {
    while (next) {
      const { question, answer, failed, still } = next;
      const mine = life;
      next = null;
      const told = await question().then(
        (got) => () => answer(got),
        (error) => () => error.name !== "AbortError" && failed(error.message || String(error)),
      );
      if (mine === life && (!next || still())) told();
    }
  };
  const ask = (question, answer, failed, still = () => false) => {
    next = { question, answer, failed, still };
    if (busy) return;
    busy = true;
    run().finally(() => (busy = false));
  };
  ask.forget = () => {
    next = null;
    life += 1;
  };
  return ask;
}

/** A line of text about the hovered element; announced to screen readers. */
export function readout(testid, hint) {
  const element = h("p", { class: "said", role: "status", data: { testid } }, hint);
  return { element, say: (text) => (element.textContent = text || hint) };
}
