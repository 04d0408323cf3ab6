// All layers and heads at once, as small maps: by layer, pattern, entropy or cluster.

import { h, fill, notice, waiting } from "./dom.js";
import { headText } from "./formatting.js";
import { codesCanvas } from "./figure.js";
import { arrange } from "./grouping.js";
import { createDetails } from "./details.js";
import { overviewDrawing, overviewTable } from "./overview-saving.js";

const SORTS = [["layer", "by layer"], ["pattern", "by pattern"], ["entropy", "by entropy"], ["cluster", "by likeness"]];
const SMALLEST = 34;
const LARGEST = 132;

export const overviewView = {
  name: "overview",
  label: "Overview",
  key: "1",
  rail: false,
  rest: "all",
  keys: [["← → ↑ ↓", "another head"], ["Enter", "open the head in full"], ["o", "another order"]],
  available: () => true,
  create,
};

function create(context) {
  const { scene, source, store, palette } = context;
  const sorts = h("div", { class: "choices", role: "radiogroup", "aria-label": "Order" });
  for (const [name, label] of SORTS) {
    sorts.append(h("button", { type: "button", role: "radio", class: "choice", data: { sort: name, testid: `sort-${name}` }, on: { click: () => store.set({ sort: name }) } }, label));
  }
  const progress = h("span", { class: "progress", role: "status" });
  const board = h("div", { class: "board", role: "group", "aria-label": "Heads" });
  const details = createDetails(context);
  const element = h("div", { class: "overview" }, h("div", { class: "overview-main" }, h("div", { class: "overview-bar" }, sorts, progress), board), details.element);
  const cells = new Map();
  const shown = { overview: null, facts: null, order: [], asked: 0, here: null, over: null, sort: "layer" };
  const tellAbout = () => details.show({ ...store.get(), ...shown.over }, shown);

  const load = async (state) => {
    const asked = (shown.asked += 1);
    if (!shown.overview) fill(board, waiting("Drawing all heads …"));
    try {
      const overview = await source.overview(state);
      if (asked !== shown.asked) return;
      shown.overview = overview;
      shown.facts = null;
      draw();
      // The thumbnails do not wait for the facts.
      fill(progress, "measuring the heads …");
      const facts = await source.facts(state).catch((problem) => problem);
      if (asked !== shown.asked) return;
      const failed = facts instanceof Error;
      fill(progress, failed ? `The heads could not be measured: ${facts.message}` : "");
      if (failed) return;
      shown.facts = facts;
      if (store.get().sort === "layer") tellAbout();
      else draw();
    } catch (problem) {
      if (asked === shown.asked) fill(board, notice("The overview could not be loaded", problem.message));
    }
  };

  const cellOf = (site, head) => {
    const name = `${site} ${head}`;
    if (!cells.has(name)) {
      const canvas = h("canvas", { class: "thumb", "aria-hidden": "true" });
      const text = headText(scene, site, head);
      const button = h("button", { type: "button", class: "cell", "aria-label": text, tabindex: "-1", data: { testid: `cell-${site}-${head}`, site, head } }, canvas);
      cells.set(name, { button, canvas, painted: "" });
    }
    return cells.get(name);
  };

  const paint = () => {
    const { overview } = shown;
    const look = `${palette.scale()} ${palette.theme()} ${store.get().variant} ${store.get().call}`;
    overview.heads.forEach(([site, head], index) => {
      const cell = cellOf(site, head);
      if (cell.painted === look && cell.from === overview) return;
      codesCanvas(overview.of(index), overview.size, overview.size, palette.table(), cell.canvas);
      cell.painted = look;
      cell.from = overview;
    });
  };

  const draw = () => {
    const state = store.get();
    paint();
    // An order that needs facts waits for them; until then heads are ordered by layer.
    shown.sort = shown.facts ? state.sort : "layer";
    const groups = arrange(shown.sort, shown.overview, shown.facts, scene);
    shown.order = groups.flatMap((group) => group.heads);
    shown.groups = groups;
    const focused = board.contains(document.activeElement);
    if (!groups.length) fill(board, notice("No facts for this order", "The heads could not be measured. Order them by layer."));
    else fill(board, shown.sort === "layer" ? numbers(groups) : null, groups.map((group) => section(group, shown.sort)));
    board.dataset.sort = shown.sort;
    resize();
    mark(state);
    if (focused && shown.here) shown.here.focus();
    context.changed();
  };

  const section = (group, sort) => {
    const heads = group.heads.map(([site, head]) => {
      const { button } = cellOf(site, head);
      const caption = group.captions ? group.captions(site, head) : null;
      return caption === null ? button : h("div", { class: "captioned" }, button, h("span", { class: "caption" }, caption));
    });
    const part = group.part ? h("h2", { class: "label board-part" }, group.part) : null;
    const body = h("section", { class: sort === "layer" ? "layer" : "cluster", "aria-label": group.label }, h("h3", { class: "board-label", title: group.title || "" }, group.label, group.note ? h("small", {}, group.note) : null), h("div", { class: "heads" }, heads));
    return part ? [part, body] : body;
  };

  /** The numbers of the heads above their columns. */
  const numbers = (groups) => {
    const most = Math.max(0, ...groups.map((group) => group.heads.length));
    return h("div", { class: "layer head-numbers", "aria-hidden": "true" }, h("span", { class: "board-label" }, "head"), h("div", { class: "heads" }, Array.from({ length: most }, (_, head) => h("span", { class: "head-number" }, String(head)))));
  };

  const resize = () => {
    const most = Math.max(1, ...scene.sites.map((site) => site.heads));
    const room = board.clientWidth - 90;
    const tall = (element.clientHeight || 600) - 64;
    const byLayer = shown.sort === "layer";
    const across = Math.max(1, Math.floor((room + 104) / 88));
    const fits = byLayer ? Math.min(room / most - 6, Math.max(tall / Math.max(1, shown.groups ? shown.groups.length : 1) - 6, 44)) : (room + 104) / across - 14;
    board.style.setProperty("--cell", `${Math.floor(Math.min(LARGEST, Math.max(SMALLEST, fits)))}px`);
  };

  const mark = (state) => {
    const cell = cells.get(`${state.site} ${state.head}`);
    if (shown.here) {
      shown.here.classList.remove("here");
      shown.here.tabIndex = -1;
    }
    shown.here = cell ? cell.button : null;
    if (shown.here) {
      shown.here.classList.add("here");
      shown.here.tabIndex = 0;
    }
    tellAbout();
  };

  const headAt = (event) => {
    const cell = event.target.closest && event.target.closest(".cell");
    return cell ? { site: Number(cell.dataset.site), head: Number(cell.dataset.head) } : null;
  };
  board.addEventListener("click", (event) => {
    const at = headAt(event);
    if (at) store.set({ ...at, view: "matrix" });
  });
  board.addEventListener("pointerover", (event) => {
    shown.over = headAt(event);
    tellAbout();
  });
  board.addEventListener("pointerleave", () => {
    shown.over = null;
    tellAbout();
  });
  /** Whether Enter opens a head: in the overview, or where no focused element handles it. */
  const opens = (focused) => !focused || focused === document.body || focused.contains(board) || board.contains(focused);
  const watcher = new ResizeObserver(resize);
  watcher.observe(element);

  return {
    element,
    update(state, changed) {
      for (const button of sorts.children) button.setAttribute("aria-checked", String(button.dataset.sort === state.sort));
      if (changed.has("variant") || changed.has("call") || !shown.asked) load(state);
      else if (shown.overview && (changed.has("sort") || changed.has("scale") || changed.has("theme"))) draw();
      else if (changed.has("site") || changed.has("head")) {
        shown.over = null;
        mark(state);
        if (shown.here) {
          shown.here.scrollIntoView({ block: "nearest" });
          if (board.contains(document.activeElement)) shown.here.focus();
        }
      }
    },
    onKey(event) {
      const state = store.get();
      if (event.key === "Enter" && opens(document.activeElement)) {
        store.set({ view: "matrix" });
        return true;
      }
      if (event.key === "o") {
        const at = SORTS.findIndex(([name]) => name === state.sort);
        store.set({ sort: SORTS[(at + 1) % SORTS.length][0] });
        return true;
      }
      // In other orders than by layer, arrow keys follow the shown order.
      if (shown.sort === "layer" || !event.key.startsWith("Arrow") || !shown.order.length || event.shiftKey) return false;
      const at = shown.order.findIndex(([site, head]) => site === state.site && head === state.head);
      const across = Math.max(1, Math.floor((board.clientWidth - 4) / (parseInt(board.style.getPropertyValue("--cell"), 10) + 14)));
      const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -across, ArrowDown: across }[event.key];
      const next = shown.order[Math.min(shown.order.length - 1, Math.max(0, at + by))];
      store.set({ site: next[0], head: next[1] });
      return true;
    },
    difference: () => false,
    what: () => [shown.overview && shown.overview.sampled ? h("span", { class: "sampled" }, "rows sampled") : null, "strongest weight of each cell"].filter(Boolean),
    subject: () => (SORTS.find(([name]) => name === shown.sort) || ["", ""])[1],
    drawing: () => shown.overview && overviewDrawing(context, shown),
    table: () => shown.overview && overviewTable(context, shown),
    destroy() {
      shown.asked += 1;
      details.forget();
      watcher.disconnect();
    },
  };
}
