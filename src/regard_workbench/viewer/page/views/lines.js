// Lines between two columns of tokens: what each token attends to, for one head, for all heads of a layer, or layer after
// layer. Only the strongest keys of each row are drawn, so that twelve layers of 512 tokens stay fluid.

import { h } from "../dom.js";
import { headCount } from "../availability.js";
import { whoseText } from "../naming.js";
import { headText, sizeOf, tokenText, weightText } from "../formatting.js";
import { Drawing } from "../drawing.js";
import { figureColors } from "../figure.js";
import { choice, newest, optionsOf, optionsText, readout } from "./components.js";
import { labelsOf } from "./text.js";

const USUAL = { how: "head", head: 0 };
const HOW = [
  ["head", "This head", "The lines of the chosen head"],
  ["layer", "All heads", "All heads of the layer, a colour for each"],
  ["model", "All layers", "Layer after layer, from the input at the left to the output at the right; the strongest head of each pair"],
];
const ALLOWED = { how: HOW.map(([name]) => name) };
const TOP = 4;
const ROW = 22; // pixels of a token's line
const LONG_ROW = 15; // in a long text
const LONG = 64;
const MOST_LINES = 3000; // in one frame
const FEW_LINES = 1200; // up to which strong lines are thicker
const FAINT = 0.05; // opacity of lines beside those of a chosen token
const SHADES = 10;
const MEASURED = 512; // labels whose width is looked at
const LABEL = 118; // the most pixels of a label
const SHORT = 46; // the fewest
const MOST_SAVED = 20000; // lines of a saved figure that stay lines
const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7a6a00", "#3a3ab8", "#a8480c", "#007b7b", "#8c2d6a", "#5c6b00", "#1f5f99", "#b03a2e"];

export const linesView = {
  name: "lines",
  label: "Lines",
  key: "n",
  keys: [["m", "this head, all heads, all layers"], ["Enter", "pin the token under the pointer"]],
  available: (scene) => scene.sites.some((site) => site.calls.length === 1 && site.calls[0].queries > 1),
  create,
};

function create({ scene, source, store, palette, tell }) {
  const ask = newest();
  const options = () => optionsOf(store.get().v, USUAL, ALLOWED);
  const set = (patch) => store.set({ v: optionsText({ ...options(), ...patch }, USUAL) });
  const how = choice({ label: "Which lines", options: HOW, testid: "lines-how", onChange: (value) => set({ how: value }) });
  const said = readout("lines-readout", "Point at a token to see its lines alone; a click pins it.");
  const canvas = h("canvas", { class: "lines-canvas", data: { testid: "lines" }, role: "img", "aria-label": "Lines between tokens; the read-out above names the strongest" });
  const spacer = h("div", { class: "lines-spacer" }, canvas);
  const window_ = h("div", { class: "lines-window", tabindex: "0", role: "region", "aria-label": "Lines between tokens" }, spacer);
  const element = h("div", { class: "sheet lines-view" }, h("div", { class: "controls", data: { trace: "skip" } }, how.element), said.element, window_);
  const counters = { count: 0 };
  let state = store.get();
  let columns = []; // [{labels, title}], from left to right
  let bundles = []; // lines between column n and n + 1: {from, to, weight, head}
  let over = null; // {column, row}
  let waiting = 0;
  let edges = [LABEL, LABEL]; // room for the labels at the left and at the right

  const site = () => scene.sites[state.site];
  const rowHeight = () => (Math.max(0, ...columns.map((column) => column.labels.length)) > LONG ? LONG_ROW : ROW);
  const paintOf = () => canvas.getContext("2d", { willReadFrequently: true }); // on the CPU: lines are no work for a GPU that is emulated
  const labelFont = () => `${rowHeight() === ROW ? 13 : 11}px ${FONT}`;
  const request = () => {
    if (!waiting) waiting = requestAnimationFrame(() => { waiting = 0; draw(); });
  };

  /** The sites of the same positions as the chosen one, one after the other. */
  function stack() {
    const own = site();
    return scene.sites.map((one, index) => ({ one, index })).filter(({ one }) => one.rows === own.rows && one.columns === own.columns && one.group === own.group && one.calls.length === 1);
  }

  function load() {
    const asked = state;
    const mode = options().how;
    const sites = mode === "model" && site().rows === site().columns ? stack().map(({ index }) => index) : [state.site];
    ask(
      () => Promise.all(sites.map((index) => source.strongest({ variant: asked.variant, call: asked.call, site: index, top: TOP }))),
      (found) => {
        build(found, sites, mode);
        request();
      },
      (words) => tell(words),
      () => asked === state,
    );
  }

  function build(found, sites, mode) {
    const own = site();
    const size = sizeOf(own, state.call);
    const rows = labelsOf(scene, state.variant, own.rows, (size.start || 0) + size.queries).slice(size.start || 0);
    const keys = labelsOf(scene, state.variant, own.columns, size.keys);
    if (mode === "model" && sites.length > 1) {
      columns = [{ labels: keys, title: "input" }, ...sites.map((index) => ({ labels: rows, title: scene.sites[index].label }))];
      // Information goes from the keys, at the left, to the queries of the next column.
      bundles = found.map((one) => bundle(one, null).map(({ from, to, ...line }) => ({ from: to, to: from, ...line })));
    } else {
      columns = [{ labels: rows, title: own.cross ? own.rows : "token" }, { labels: keys, title: own.cross ? own.columns : "attends to" }];
      bundles = [bundle(found[0], mode === "head" ? state.head : null, mode === "layer")];
    }
    resize();
    window.__regard = { ...window.__regard, lines: () => ({ count: counters.count, lines: bundles.reduce((sum, lines) => sum + lines.length, 0), columns: columns.length }) };
  }

  /** Lines of one head, of every head (`all`), or the strongest head of each pair. */
  function bundle(found, head, all = false) {
    const lines = [];
    const heads = head === null ? Array.from({ length: found.heads }, (_, index) => index) : [head];
    for (let row = 0; row < found.queries; row += 1) {
      const best = new Map();
      for (const each of heads) {
        for (let rank = 0; rank < found.top; rank += 1) {
          const [key, weight] = [found.keyOf(each, row, rank), found.weightOf(each, row, rank)];
          if (key < 0 || !(weight > 0.01)) continue;
          if (all || head !== null) lines.push({ from: row, to: key, weight, head: each });
          else if (!best.has(key) || best.get(key).weight < weight) best.set(key, { from: row, to: key, weight, head: each });
        }
      }
      if (!all && head === null) lines.push(...[...best.values()].sort((a, b) => b.weight - a.weight).slice(0, TOP));
    }
    return lines.sort((a, b) => b.weight - a.weight); // the strongest first, so that a frame may stop early
  }

  function resize() {
    if (!columns.length) return;
    edges = [room(0), room(columns.length - 1)];
    const height = Math.max(1, ...columns.map((column) => column.labels.length)) * rowHeight() + 40;
    spacer.style.height = `${height}px`;
    spacer.style.width = `${Math.max(window_.clientWidth, columns.length > 2 ? edges[0] + edges[1] + (columns.length - 1) * 88 : 0)}px`;
    request();
  }

  /** How wide the labels of a column are: on a phone there is no room to waste. */
  const room = (column) => {
    const paint = paintOf();
    paint.font = labelFont();
    const widest = columns[column].labels.slice(0, MEASURED).reduce((most, label) => Math.max(most, paint.measureText(tokenText(label, 16)).width), 0);
    paint.font = TITLE;
    return Math.min(LABEL, Math.max(SHORT, 14 + Math.max(widest, paint.measureText(columns[column].title).width)));
  };
  const xOf = (column, width) => {
    const [left, right] = edges;
    const last = columns.length === 2 ? width - right : width - Math.max(right, 30);
    return left + (column * (last - left)) / Math.max(1, columns.length - 1);
  };

  /** The token whose lines are shown alone: the one under the pointer, else the pinned one. */
  const focused = () => over || (state.row !== null ? { column: columns.length === 2 ? 0 : columns.length - 1, row: state.row } : null);

  /**
   * Strokes the lines in the window, strongest first. Many lines are one pixel wide: a browser without a GPU draws those much
   * faster than thick ones.
   */
  function strokeLines(paint, width, y, top, height, focus) {
    const step = rowHeight();
    const [first, last] = [Math.floor(top / step) - 1, Math.ceil((top + height) / step)];
    const quota = Math.ceil(MOST_LINES / Math.max(1, bundles.length));
    const thin = bundles.reduce((sum, lines) => sum + lines.length, 0) > FEW_LINES;
    bundles.forEach((lines, index) => {
      const [left, right] = [xOf(index, width) + 3, xOf(index + 1, width) - 3];
      let drawn = 0;
      let look = "";
      for (const { from, to, weight, head } of lines) {
        if (drawn >= quota) break;
        if ((from < first && to < first) || (from > last && to > last)) continue;
        const touched = !focus || (focus.column === index && focus.row === from) || (focus.column === index + 1 && focus.row === to);
        if (!touched && drawn > quota / 4) continue;
        const shade = Math.max(1, Math.round(SHADES * Math.sqrt(Math.min(1, weight))));
        const name = touched ? `${shade} ${options().how === "layer" ? head : ""}` : "faint";
        if (name !== look) {
          if (look) paint.stroke();
          look = name;
          paint.beginPath();
          paint.strokeStyle = colourOf(head);
          paint.globalAlpha = touched ? shade / SHADES : FAINT;
          paint.lineWidth = thin || !touched ? 1 : 0.6 + (1.8 * shade) / SHADES;
        }
        paint.moveTo(left, y(from));
        paint.lineTo(right, y(to));
        drawn += 1;
      }
      if (look) paint.stroke();
    });
    paint.globalAlpha = 1;
  }

  function draw() {
    if (!columns.length) return;
    const ratio = devicePixelRatio || 1;
    const width = Math.max(spacer.clientWidth, 200);
    const height = window_.clientHeight;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    const top = window_.scrollTop;
    const paint = paintOf();
    paint.setTransform(ratio, 0, 0, ratio, 0, 0);
    paint.clearRect(0, 0, width, height);
    const focus = focused();
    const step = rowHeight();
    const y = (row) => 30 + (row + 0.5) * step - top;
    strokeLines(paint, width, y, top, height, focus);
    words(paint, width, y, top, height, focus);
    counters.count += 1;
  }

  function colourOf(head) {
    return options().how === "layer" ? COLOURS[head % COLOURS.length] : palette.theme() === "dark" ? "#7fb7ff" : "#0b5fa5";
  }

  function words(paint, width, y, top, height, focus) {
    const colors = figureColors(palette);
    const step = rowHeight();
    const first = Math.max(0, Math.floor((top - 40) / step));
    const last = Math.ceil((top + height) / step);
    columns.forEach(({ labels, title }, column) => {
      const left = column === 0;
      const right = column === columns.length - 1;
      const x = xOf(column, width);
      paint.font = TITLE;
      paint.fillStyle = colors.soft;
      paint.textAlign = left ? "right" : right ? "left" : "center";
      paint.fillText(title, left ? x - 6 : right ? x + 6 : x, 16 - Math.min(top, 0));
      if (!left && !right) {
        paint.fillStyle = colors.line;
        for (let row = first; row < Math.min(last, labels.length); row += 1) paint.fillRect(x - 2, y(row) - 1, 4, 2);
        if (!focus || focus.column !== column) return;
      }
      for (let row = first; row < Math.min(last, labels.length); row += 1) {
        const here = focus && focus.column === column && focus.row === row;
        if (!left && !right && !here) continue;
        paint.font = `${here ? "600 " : ""}${labelFont()}`;
        paint.fillStyle = here ? colors.accent : colors.ink;
        paint.textAlign = left ? "right" : "left";
        paint.fillText(tokenText(labels[row], 16), left ? x - 6 : x + 6, y(row) + 4);
      }
    });
  }

  function at(event) {
    const box = window_.getBoundingClientRect();
    const [px, py] = [event.clientX - box.left + window_.scrollLeft, event.clientY - box.top + window_.scrollTop];
    const row = Math.floor((py - 30) / rowHeight());
    const width = spacer.clientWidth;
    let column = 0;
    for (let index = 1; index < columns.length; index += 1) if (Math.abs(px - xOf(index, width)) < Math.abs(px - xOf(column, width))) column = index;
    return columns.length && row >= 0 && row < columns[column].labels.length ? { column, row } : null;
  }

  window_.addEventListener("pointermove", (event) => {
    const next = at(event);
    if ((next && over && next.column === over.column && next.row === over.row) || (!next && !over)) return;
    over = next;
    describe();
    request();
  });
  window_.addEventListener("pointerleave", () => {
    over = null;
    describe();
    request();
  });
  window_.addEventListener("click", (event) => {
    const here = at(event);
    const querying = columns.length === 2 ? 0 : columns.length - 1;
    if (here && here.column === querying) store.set({ row: state.row === here.row ? null : here.row });
  });
  window_.addEventListener("scroll", request);
  const watcher = new ResizeObserver(resize);
  watcher.observe(window_);

  function describe() {
    const focus = over;
    if (!focus) return said.say(whose());
    const name = tokenText(columns[focus.column].labels[focus.row], 24);
    const touching = bundles.flatMap((lines, index) => lines.filter((line) => (focus.column === index && focus.row === line.from) || (focus.column === index + 1 && focus.row === line.to)).map((line) => ({ ...line, other: focus.column === index ? columns[index + 1].labels[line.to] : columns[index].labels[line.from] })));
    touching.sort((a, b) => b.weight - a.weight);
    const told = touching.slice(0, 4).map((line) => `“${tokenText(line.other, 16)}” ${weightText(line.weight)}${options().how === "head" ? "" : ` (head ${line.head})`}`);
    return said.say(`“${name}” at ${focus.row}:   ${told.join("   ·   ") || "no strong line"}`);
  }

  function whose() {
    const { how: mode } = options();
    if (mode === "model") return "all layers · the strongest head of each pair";
    return mode === "layer" ? `${site().label || site().name} · ${headCount(site(), state.variant)} heads` : headText(scene, state.site, state.head);
  }

  /** Every line of all rows, not only those in the window; of many, the strongest. */
  function drawing() {
    const colors = figureColors(palette);
    const [width, step] = [Math.max(spacer.clientWidth, 200), rowHeight()];
    const rows = Math.max(1, ...columns.map((column) => column.labels.length));
    const made = new Drawing(Math.ceil(width), rows * step + 40, palette.paper());
    const y = (row) => 30 + (row + 0.5) * step;
    const quota = Math.ceil(MOST_SAVED / Math.max(1, bundles.length));
    bundles.forEach((lines, index) => {
      for (const { from, to, weight, head } of lines.slice(0, quota)) {
        const strength = Math.sqrt(Math.min(1, weight));
        made.line(xOf(index, width) + 3, y(from), xOf(index + 1, width) - 3, y(to), { stroke: colourOf(head), width: 0.6 + 1.8 * strength, opacity: strength });
      }
    });
    columns.forEach(({ labels, title }, column) => {
      const [left, right, x] = [column === 0, column === columns.length - 1, xOf(column, width)];
      const [at, anchor] = left ? [x - 6, "end"] : right ? [x + 6, "start"] : [x, "middle"];
      made.text(at, 16, title, { size: 11, bold: true, fill: colors.soft, anchor });
      if (left || right) labels.forEach((label, row) => made.text(at, y(row) + 4, tokenText(label, 16), { size: step === ROW ? 13 : 11, fill: colors.ink, anchor }));
    });
    return made;
  }

  return {
    element,
    update(next, changed) {
      state = next;
      how.set(options().how);
      how.enable("layer", headCount(site(), state.variant) > 1);
      how.enable("model", site().rows === site().columns && stack().length > 1);
      describe();
      if (["view", "variant", "site", "head", "call", "v"].some((name) => changed.has(name))) load();
      else request();
    },
    onKey(event) {
      if (event.key !== "m") return false;
      set({ how: ALLOWED.how[(ALLOWED.how.indexOf(options().how) + 1) % ALLOWED.how.length] });
      return true;
    },
    difference: () => false,
    what: () => [`strongest ${TOP} keys of each row`, "thicker and darker: more weight"],
    legend: () => h("span", { class: "quiet" }, options().how === "layer" ? "a colour for each head" : "weights from 0.01 on"),
    subject: () => (options().how === "head" ? whoseText(scene, state) : whose()),
    drawing,
    table() {
      const rows = bundles.flatMap((lines, index) => lines.map((line) => [columns[index].title, columns[index + 1].title, line.head, line.from, columns[index].labels[line.from], line.to, columns[index + 1].labels[line.to], line.weight]));
      return { head: ["from", "to", "head", "from position", "from token", "to position", "to token", "weight"], rows };
    },
    destroy() {
      cancelAnimationFrame(waiting);
      waiting = -1;
      ask.forget();
      watcher.disconnect();
    },
  };
}

const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif';
const TITLE = `600 11px ${FONT}`;
