// The shell: header, tabs, the head picker, the open view, the legend, and the keyboard shortcuts of all views.

import { h, fill, isTyping, notice, waiting } from "./dom.js";
import { answeredDrawing, createAnswer } from "./answer.js";
import { createInputBar, watchDrops } from "./input-bar.js";
import { checked } from "./availability.js";
import { limitDigits } from "./formatting.js";
import { fileName, whoseText } from "./naming.js";
import { createStore, defaults, fitted, fromHash, mirror, stepped } from "./state.js";
import { createPalette } from "./palette.js";
import { createRail } from "./rail.js";
import { createSaving } from "./saving.js";
import { createHelp } from "./help.js";
import { createTools, createFooter } from "./bars.js";
import { createWarning } from "./warning.js";
import { overviewView } from "./overview.js";
import { matrixView } from "./matrix.js";
import { tokensView } from "./views/tokens.js";
import { linesView } from "./views/lines.js";
import { stepsView } from "./views/steps.js";
import { imageView } from "./views/image.js";
import { alignmentView } from "./views/alignment.js";
import { memoryView } from "./views/memory.js";
import { timelineView } from "./views/timeline.js";
import { compareView } from "./views/compare.js";
import { graphView } from "./views/graph.js";
import { causesView } from "./views/causes.js";
import { createCauses } from "./causes.js";

const VIEWS = [overviewView, matrixView, tokensView, linesView, stepsView, imageView, alignmentView, memoryView, timelineView, compareView, graphView, causesView];
const SHORT_INPUT = 128;
const TAB_EDGE = 40; // pixels of the next tab that stay in view
const counter = { pages: 0 };

/** Show a source inside `root`. `address: false` does not change the URL of the surrounding page (notebooks). */
export function mount(root, source, { address = true } = {}) {
  root.classList.add("regard");
  root.dataset.theme = systemTheme();
  fill(root, h("div", { class: "whole" }, waiting("Loading …")));
  return source.scene().then(
    (scene) => reopening(root, source.other && scene.input ? source.other(scene.input.number) : source, scene, address),
    (problem) => {
      const again = h("button", { type: "button", on: { click: () => mount(root, source, { address }) } }, "Try again");
      fill(root, h("div", { class: "whole", role: "alert" }, notice("Nothing to show yet", problem.message), again));
      return { destroy: () => fill(root) };
    },
  );
}

/** Another input replaces the whole page; what does not depend on the input stays as it is. */
function reopening(root, source, scene, address) {
  const current = { page: null };
  const onScene = (next, edited) => {
    const { site, head, sort, scale, theme, view } = current.page.store.get();
    current.page.destroy();
    const start = edited && next.variants.length > 1 ? "compare" : next.start === "steps" || view === "steps" ? next.start : view;
    const kept = { site, head, sort, scale, theme, ...(start ? { view: start } : {}) };
    current.page = open(root, source.other(next.input.number), next, address, { kept, onScene });
    (root.querySelector(edited ? "main" : "[data-testid=input-text]") || root.querySelector("main")).focus({ preventScroll: true });
  };
  current.page = open(root, source, scene, address, { onScene });
  return { get store() { return current.page.store; }, destroy: () => current.page.destroy() };
}

function open(root, given, scene, address, { kept = null, onScene }) {
  const source = checked(given, scene);
  limitDigits(given.digits);
  const views = VIEWS.filter((view) => view.available(scene));
  const usual = { ...defaults, view: scene.start && views.some((view) => view.name === scene.start) ? scene.start : defaults.view };
  const fit = (state) => fitted(state, scene, views);
  const store = createStore(fit({ ...usual, ...(kept || (address ? fromHash(location.hash) : {})) }));
  const longest = Math.max(0, ...scene.sites.flatMap((site) => site.calls.map((call) => call.keys)));
  const theme = () => (store.get().theme === "auto" ? systemTheme() : store.get().theme);
  const scale = () => (store.get().scale === "auto" ? (longest <= SHORT_INPUT ? "root" : "log") : store.get().scale);
  const palette = createPalette(theme, scale);
  const tell = teller();
  const shown = { view: null, instance: null };
  const context = { scene, source, store, palette, tell: tell.say, causes: createCauses(scene, given), changed: () => footer.update(store.get(), shown.instance) };

  const id = `regard-${(counter.pages += 1)}`;
  const tabs = h("div", { class: "tabs", role: "tablist", "aria-label": "Views" });
  for (const view of views) {
    tabs.append(h("button", {
      type: "button", role: "tab", class: "tab", "aria-controls": `${id}-view`, "aria-keyshortcuts": view.key, title: `${view.label} (${view.key})`,
      data: { testid: `tab-${view.name}`, view: view.name }, on: { click: (event) => choose(view.name, event) },
    }, view.label));
  }
  const main = h("main", { class: "view", id: `${id}-view`, role: "tabpanel", tabindex: "-1" });
  // A clicked tab moves the focus to its view, where arrow keys change the head. Reached by keyboard, the tab keeps the
  // focus, and arrow keys change the tab.
  const choose = (name, event) => {
    store.set({ view: name });
    if (event.detail) main.focus({ preventScroll: true });
  };
  const help = createHelp(views);
  const saving = createSaving({ shown: () => shown.instance || {}, captioned: (drawing) => (shown.view && shown.view.variants === false ? drawing : answeredDrawing(drawing, scene, store.get().variant, theme() === "dark" ? "#aeb0b6" : "#5c6069")), name: () => fileName(scene.title, store.get().view, subject()), tell: tell.say, address, warning: scene.warning, font: given.font });
  const subject = () => (shown.instance && shown.instance.subject ? shown.instance.subject() : whoseText(scene, store.get()));
  const answer = createAnswer(scene);
  const words = h("p", { class: "words" });
  const describe = ({ variant }) => {
    const text = (variant && scene.variants[variant].words) || scene.words || "";
    if (words.textContent !== text) fill(words, text);
    words.title = text;
  };
  const bar = createInputBar({ scene, source: given, tell: tell.say, onScene });
  context.input = bar;
  const rail = createRail(context);
  const tools = createTools(context, { saving, help });
  const footer = createFooter(context);
  const body = h("div", { class: "body" }, rail.element, main);
  fill(
    root,
    h("header", { class: "top" }, h("div", { class: "heading" }, h("h1", {}, scene.title || "Attention"), words, answer.element), tools.element, createWarning(scene), bar && bar.element, tabs),
    body, footer.element, help.element, tell.element,
  );
  if (address) document.title = `${scene.title || "Attention"} · regard`;

  const show = (state) => {
    if (shown.instance && shown.instance.destroy) shown.instance.destroy();
    shown.view = views.find((view) => view.name === state.view) || null;
    shown.instance = null;
    body.classList.toggle("with-rail", Boolean(shown.view) && shown.view.rail !== false);
    for (const tab of tabs.children) {
      const here = tab.dataset.view === state.view;
      tab.setAttribute("aria-selected", String(here));
      tab.tabIndex = here ? 0 : -1;
      if (here) tabs.scrollLeft = Math.max(0, tab.offsetLeft + tab.offsetWidth + TAB_EDGE - tabs.clientWidth - tabs.offsetLeft); // a phone shows some of the tabs
    }
    try {
      if (!scene.sites.length) throw new Error("empty");
      shown.instance = shown.view.create(context);
      fill(main, shown.instance.element);
      shown.instance.update(state, new Set(Object.keys(state)));
    } catch (problem) {
      fill(main, problem.message === "empty" ? emptyStage() : notice("This view could not be opened", problem.message));
      if (problem.message !== "empty") console.error(problem);
    }
  };
  let pending = new Set();
  const update = (state, news) => {
    root.dataset.theme = theme();
    for (const name of news) pending.add(name);
    const sound = fit(state);
    // The head may not exist in another layer: correct the state before views draw it.
    if (Object.keys(sound).some((name) => sound[name] !== state[name])) {
      store.set(sound);
      return;
    }
    const changed = pending;
    pending = new Set();
    if (changed.has("view")) show(state);
    else if (shown.instance) shown.instance.update(state, changed);
    rail.update(state);
    tools.update(state, shown.view);
    answer.update(state);
    describe(state);
    footer.update(state, shown.instance);
  };
  const forget = [store.subscribe(update), watchTheme(() => store.get().theme === "auto" && store.touch("theme")), listen(root, address, (event) => press(event))];
  if (address) forget.push(mirror(store, fit, usual));
  forget.push(watchDrops(root, bar), saving.forget);

  const press = (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || isTyping(event) || help.element.open) {
      if (event.key === "?" && help.element.open) help.toggle();
      return;
    }
    const handled = (shown.instance && shown.instance.onKey && shown.instance.onKey(event)) || pressed(event, { scene, store, views, saving, help, tabs, bar });
    if (!handled) return;
    event.preventDefault();
    // Notebooks use most keys themselves.
    if (!address) event.stopPropagation();
  };

  update(store.get(), new Set(["view"]));
  if (scene.input && scene.input.notes && scene.input.notes.length) tell.say(scene.input.notes.join(" "));
  window.__regard = { ...window.__regard, state: store.get, set: store.set, views: views.map((view) => view.name), input: scene.input ? scene.input.number : 0 };
  return {
    store,
    destroy() {
      for (const stop of forget) stop();
      if (shown.instance && shown.instance.destroy) shown.instance.destroy();
      fill(root);
    },
  };
}

/** Handles shortcuts that are the same in every view; returns whether the key was one. */
function pressed(event, { scene, store, views, saving, help, tabs, bar }) {
  const state = store.get();
  const site = scene.sites[state.site];
  const key = event.key;
  const view = views.find((candidate) => candidate.key === key);
  if (view) store.set({ view: view.name });
  else if ((key === "ArrowLeft" || key === "ArrowRight") && tabs.contains(document.activeElement)) {
    const at = views.findIndex((candidate) => candidate.name === state.view);
    store.set({ view: views[(at + (key === "ArrowLeft" ? views.length - 1 : 1)) % views.length].name });
    tabs.querySelector("[aria-selected=true]").focus();
  } else if (event.shiftKey && key.startsWith("Arrow")) return false;
  else if (!site) return false;
  else if (key === "ArrowLeft") store.set({ head: (state.head + site.heads - 1) % site.heads });
  else if (key === "ArrowRight") store.set({ head: (state.head + 1) % site.heads });
  else if (key === "ArrowUp" || key === "ArrowDown") {
    const next = state.site + (key === "ArrowUp" ? -1 : 1);
    if (next >= 0 && next < scene.sites.length) store.set({ site: next, head: Math.min(state.head, scene.sites[next].heads - 1) });
  } else if (key === "[" || key === "]") {
    const open = views.find((candidate) => candidate.name === state.view);
    store.set({ call: stepped(site.calls, state.call, key === "[" ? -1 : 1, open) });
  } else if (key === "l") store.set({ scale: { log: "root", root: "linear", linear: "log", auto: "linear" }[state.scale] });
  else if (key === "t") store.set({ theme: { auto: systemTheme() === "light" ? "dark" : "light", light: "dark", dark: "light" }[state.theme] });
  else if (key === "i" && bar) bar.focus();
  else if (key === "s") saving.toggle();
  else if (key === "?") help.toggle();
  else if (key === "Escape" && (state.row !== null || state.key !== null)) store.set({ row: null, key: null });
  else return false;
  return true;
}

/** Key events: of the whole page when it is ours, in a notebook only of the focused element. */
function listen(root, whole, f) {
  const target = whole ? document : root;
  target.addEventListener("keydown", f);
  return () => target.removeEventListener("keydown", f);
}

const system = { query: null, theme: "light" };

/** The system's theme, cached: each query forces the browser to recompute styles. */
function systemTheme() {
  if (!system.query) {
    const read = () => {
      system.theme = system.query.matches ? "dark" : "light";
    };
    system.query = matchMedia("(prefers-color-scheme: dark)");
    system.query.addEventListener("change", read);
    read();
  }
  return system.theme;
}

function watchTheme(f) {
  system.query.addEventListener("change", f);
  return () => system.query.removeEventListener("change", f);
}

/** Short messages at the bottom, also announced to screen readers. */
function teller() {
  const element = h("div", { class: "message", role: "status", "aria-live": "polite", data: { testid: "message" } });
  let timer = 0;
  const say = (text) => {
    clearTimeout(timer);
    fill(element, text);
    element.classList.toggle("shown", Boolean(text));
    timer = setTimeout(() => element.classList.remove("shown"), 4000);
  };
  return { element, say };
}

function emptyStage() {
  return notice("No attention was seen", "The model ran, but no attention call was captured.", "Try `regard.observe(model)` around the call itself, and look at `seen.names()`.");
}
