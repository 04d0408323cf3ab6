// The input bar of a live page: another text, file or example for the same model, and a text to be continued.

import { h, fill } from "./dom.js";
import { rangesOf } from "./token-ranges.js";

const WAIT = "running …";
const LONGEST_ROWS = 4;
const FEW_WRITTEN = 20;
const KINDS = [
  ["image", "image/*,.png,.jpg,.jpeg,.gif,.bmp,.webp", /\.(png|jpe?g|gif|bmp|webp|tiff?)$/i],
  ["sound", "audio/*,.wav,.flac,.ogg", /\.(wav|flac|ogg|mp3)$/i],
  ["table", ".csv,text/csv", /\.csv$/i],
];
const FILE_NAMES = { image: "Picture …", sound: "Sound …", table: "Table …" };

/**
 * `{element, edit(label, word), running}`, or null where the page shows one input only. `onScene(answer, edited)` is called with
 * the scene of each new input.
 */
export function createInputBar({ scene, source, tell, onScene }) {
  const { input } = scene;
  if (!input || !source.send) return null;
  const takes = new Set(input.takes);
  const files = KINDS.filter(([kind]) => takes.has(kind));
  const state = { running: false };
  const status = h("span", { class: "input-status", role: "status", data: { testid: "input-status" } });
  const text = h("textarea", { class: "input-text", rows: 1, maxlength: input.longest, spellcheck: "false", "aria-label": "Text that the model reads", placeholder: "Type a text, then press Enter", value: input.text, data: { testid: "input-text" } });
  const target = input.target === null ? null : h("textarea", { class: "input-text", rows: 1, maxlength: input.longest, spellcheck: "false", "aria-label": "Text that the model writes", placeholder: "what it writes (empty: its own words)", value: input.target, data: { testid: "input-target" } });
  const count = h("input", { class: "input-count", type: "number", min: 1, max: input.mostWritten, value: input.generate || FEW_WRITTEN, "aria-label": "Tokens to write", data: { testid: "input-count" } });
  const run = h("button", { type: "submit", class: "button", data: { testid: "input-run" } }, "Run");
  const write = h("button", { type: "button", class: "button", title: "Let the model write, step by step", data: { testid: "input-write" }, on: { click: () => send({ ...typed(), generate: Number(count.value) || FEW_WRITTEN, target: undefined }) } }, "Write");
  const choosers = files.map(([kind, accept]) => {
    const hidden = h("input", { type: "file", accept, hidden: true, "aria-hidden": "true", tabindex: "-1", data: { testid: `input-${kind}` }, on: { change: () => hidden.files[0] && sendFile(hidden.files[0], kind) } });
    return [h("button", { type: "button", class: "button", title: `Choose a file, or drop one on the page`, on: { click: () => hidden.click() } }, FILE_NAMES[kind]), hidden];
  });
  const form = h(
    "form",
    { class: "input-bar", data: { testid: "input-bar" }, on: { submit: (event) => { event.preventDefault(); send(typed()); } } },
    takes.has("text") ? [text, target] : null,
    takes.has("text") ? run : null,
    input.writes && takes.has("text") ? h("span", { class: "pair" }, write, count, h("span", { class: "input-unit" }, "tokens")) : null,
    choosers,
    input.examples > 1 ? exampleStepper(input, send) : null,
    status,
  );
  for (const box of [text, target].filter(Boolean)) {
    const grow = () => {
      box.rows = Math.min(LONGEST_ROWS, Math.max(1, box.value.split("\n").length));
    };
    grow();
    box.addEventListener("input", grow);
    box.addEventListener("keydown", (event) => {
      if (event.key === "Escape") box.blur();
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      send(typed());
    });
  }

  function typed() {
    return { text: text.value, ...(target && target.value.trim() ? { target: target.value } : {}) };
  }

  async function start(work, edited = false) {
    if (state.running) return;
    state.running = true;
    form.classList.add("busy");
    fill(status, WAIT);
    try {
      onScene(await work(), edited);
    } catch (problem) {
      fill(status, problem.message);
      form.classList.add("failed");
    } finally {
      state.running = false;
      form.classList.remove("busy");
    }
  }

  function send(fields, edited = false) {
    form.classList.remove("failed");
    return start(() => source.send({ ...fields, ...(edited ? { edited } : {}) }), edited);
  }

  function sendFile(file, kind) {
    form.classList.remove("failed");
    const words = takes.has("text") ? text.value.slice(0, 1000) : "";
    return start(() => source.sendFile(file, kind, words));
  }

  async function drop(file) {
    const known = files.find(([, , names]) => names.test(file.name)) || (files.length === 1 && !takes.has("text") ? files[0] : null);
    if (known) return sendFile(file, known[0]);
    if (!takes.has("text")) return tell(`This model reads: ${input.takes.join(", ") || "examples of its task"}.`);
    text.value = (await file.text()).slice(0, input.longest).trim();
    return send(typed());
  }

  return {
    element: form,
    drop,
    focus: () => takes.has("text") && text.focus(),
    /** The position of each token in the text: `[start, end]`, or null for one that is not part of it. */
    ranges: (labels) => (takes.has("text") ? rangesOf(input.text, labels) : []),
    /** Replace a part of the text and show what moves. */
    edit(range, word) {
      const changed = input.text.slice(0, range[0]) + word + input.text.slice(range[1]);
      text.value = changed;
      return send(typed(), true);
    },
  };
}

/** Files dropped anywhere on the page; returns how to stop listening. */
export function watchDrops(root, bar) {
  if (!bar) return () => {};
  const over = (event) => {
    if (![...event.dataTransfer.types].includes("Files")) return;
    event.preventDefault();
    root.classList.add("dropping");
  };
  const leave = (event) => {
    if (!root.contains(event.relatedTarget)) root.classList.remove("dropping");
  };
  const drop = (event) => {
    root.classList.remove("dropping");
    if (!event.dataTransfer.files.length) return;
    event.preventDefault();
    bar.drop(event.dataTransfer.files[0]);
  };
  const all = [["dragover", over], ["dragleave", leave], ["drop", drop]];
  for (const [name, f] of all) root.addEventListener(name, f);
  return () => all.forEach(([name, f]) => root.removeEventListener(name, f));
}

function exampleStepper(input, send) {
  const at = input.example;
  const go = (by) => send({ example: Math.min(input.examples - 1, Math.max(0, at === null ? 0 : at + by)) });
  const button = (name, sign, words, by) => h("button", { type: "button", class: "plain", "aria-label": words, title: words, data: { testid: `example-${name}` }, on: { click: () => go(by) } }, sign);
  return h("span", { class: "pair", title: "test examples of the task" }, button("prev", "‹", "Example before", -1), h("output", { class: "input-unit", data: { testid: "example" } }, at === null ? "examples" : `example ${at} of 0–${input.examples - 1}`), button("next", "›", "Next example", 1));
}
