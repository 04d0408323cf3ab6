// One head at full resolution, up to 32 thousand × 32 thousand weights: visible tiles are loaded, coarse before fine.

import { h, settled } from "./dom.js";
import { headText, keyText, rowText, seenBy, sizeOf, countText, weightText, differenceText } from "./formatting.js";
import { exactnessText, exactnessTitle } from "./exactness.js";
import { ground } from "./palette.js";
import { Viewport } from "./viewport.js";
import { glPainter } from "./gl.js";
import { canvasPainter } from "./canvas.js";
import { Tiles } from "./tiles.js";
import { createTileFrame } from "./tile-frame.js";
import { createAxes, hasWords, NARROW, roomFor } from "./axes.js";
import { listenTo } from "./gestures.js";
import { drawLines, rgbOf } from "./lines.js";
import { createMinimap } from "./minimap.js";
import { createReadout } from "./readout.js";
import { createCellNumbers } from "./cell-numbers.js";
import { withJoinedCalls } from "./joined-calls.js";
import { figureColors } from "./figure.js";
import { matrixDrawing, matrixSubject, matrixTable } from "./matrix-saving.js";

const SHARPEST = 2;
const GLIDE = 160;
const RETRY = 4200;

export const matrixView = {
  name: "matrix",
  label: "Matrix",
  key: "2",
  keys: [["+ −", "zoom in, zoom out"], ["0", "the whole"], ["Shift ← ↑ → ↓", "from cell to cell"], ["Enter", "pin the cell under the pointer"], ["Esc", "unpin the cell"]],
  rest: "all",
  available: () => true,
  create,
};

function create(given) {
  // Steps of a generation are joined to one map.
  const { scene, source } = withJoinedCalls(given.scene, given.source);
  const context = { ...given, scene, source };
  const { store, palette, tell } = context;
  const side = (scene.limits && scene.limits.tile) || 256;
  const canvas = h("canvas", { class: "plot-map", "aria-hidden": "true" });
  const leftAxis = h("canvas", { class: "axis axis-left", "aria-hidden": "true" });
  const topAxis = h("canvas", { class: "axis axis-top", "aria-hidden": "true" });
  const live = h("div", { class: "aloud", "aria-live": "polite" });
  const minimap = createMinimap((column, row) => {
    viewport.x = column - viewport.width / viewport.zoom / 2;
    viewport.y = row - viewport.height / viewport.zoom / 2;
    viewport.settle();
    moved();
  });
  const numbers = createCellNumbers();
  const plot = h("div", { class: "plot", tabindex: "0", role: "application", "aria-roledescription": "zoomable matrix", data: { testid: "matrix" } }, canvas, numbers.element, minimap.element);
  const trouble = h("div", { class: "plot-trouble", role: "alert", hidden: true });
  const area = h("div", { class: "plot-area" }, topAxis, leftAxis, plot, trouble);
  const readout = createReadout(context, (text) => live.replaceChildren(text));
  const element = h("div", { class: "matrix" }, area, readout.element, live);

  const viewport = new Viewport();
  const painter = (!store.get().canvas && glPainter(canvas, side, () => {
    colorPainter();
    tiles.restore();
    ask();
  })) || canvasPainter(canvas);
  const scenery = createTileFrame(side);
  const axes = createAxes(leftAxis, topAxis);
  const tiles = new Tiles(source, painter, () => ask(), (problem) => {
    complain(problem.message);
    again = setTimeout(ask, RETRY);
  });
  const pointer = { row: null, key: null, x: 0, y: 0 };
  const here = { row: null, key: null };
  const counters = { count: 0, draws: 0, began: 0, last: 0, longest: 0 };
  const now = { site: null, labels: scene, call: -1, ratio: 1, look: figureColors(palette), ground: ground(palette.theme()), mini: null, ready: "", sampled: null, level: -1, lines: null };
  let waiting = 0;
  let again = 0;
  let glide = null;
  let ownText = null;
  let address = "";
  let room = NARROW;
  let spacious = NARROW;

  const table = () => (store.get().minus === null ? palette.table() : palette.differenceTable());
  const colorPainter = () => painter.colors(table(), store.get().minus === null ? 0 : 128);
  const rowName = (row) => rowText(now.labels, now.site, now.call, row, 24);
  const keyName = (key) => keyText(now.labels, now.site, key, 24);

  // Drawing ------------------------------------------------------------------------------------------------------
  const ask = () => {
    if (!waiting) waiting = requestAnimationFrame(render);
  };
  const render = (time) => {
    waiting = 0;
    if (!tiles.sheet || viewport.width <= 1) return;
    if (glide) advance(time);
    makeRoom();
    address = "";
    const frame = scenery.draw(viewport, tiles, painter, now.ratio, now.ground);
    tiles.fetch();
    here.row = pointer.row !== null ? pointer.row : store.get().row;
    here.key = pointer.key !== null ? pointer.key : store.get().key;
    // At a low frame rate, labels are drawn in every other frame; the last frame always has them.
    const slow = time - counters.last > 26 && time - counters.last < 200;
    if (slow && counters.count % 2) ask();
    else axes.draw(viewport, rowName, keyName, here, now.look);
    drawLines(painter, viewport, now.ratio, here, store.get(), now.lines);
    numbers.draw(viewport, now.ratio, codeAt, palette, store.get().minus !== null);
    minimap.update(viewport);
    count(time, frame);
    report(frame);
    if (glide) ask();
  };
  const codeAt = (row, key) => {
    const tile = tiles.find(0, Math.floor(key / side), Math.floor(row / side), false);
    return tile ? tile.codes[(row % side) * tile.width + (key % side)] : null;
  };
  const count = (time, frame) => {
    if (counters.last && time - counters.last < 500) counters.longest = Math.max(counters.longest, time - counters.last);
    if (!counters.began) counters.began = time;
    counters.last = time;
    counters.count += 1;
    counters.draws = frame.draws;
  };
  /** Update the footer and the data attributes for tests, only when something changed. */
  const report = (frame) => {
    const ready = frame.missing === 0 && tiles.idle() ? "true" : "false";
    if (ready !== now.ready) {
      now.ready = ready;
      plot.dataset.ready = ready;
      if (ready === "true") trouble.hidden = true;
    }
    const coarse = tiles.find(frame.coarsest, 0, 0, false);
    if (coarse && now.mini !== coarse) {
      now.mini = coarse;
      minimap.paint(coarse, table());
    }
    if (frame.sampled !== now.sampled || frame.level !== now.level) {
      now.sampled = frame.sampled;
      now.level = frame.level;
      plot.dataset.level = String(frame.level);
      context.changed();
    }
  };

  // Moving -------------------------------------------------------------------------------------------------------
  const keep = settled(() => {
    ownText = viewport.toText();
    store.set({ v: ownText });
  }, 200);
  const moved = () => {
    if (pointer.row !== null) aim(pointer.x, pointer.y);
    keep();
    ask();
  };
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const zoom = (factor, x, y, smooth) => {
    if (!smooth || still.matches) {
      glide = null;
      viewport.zoomAt(factor, x, y);
      moved();
      return;
    }
    // Key presses add up: the next one starts from the target of the last.
    glide = { from: viewport.zoom, to: viewport.allowed((glide ? glide.to : viewport.zoom) * factor), x, y, began: 0 };
    ask();
  };
  const advance = (time) => {
    if (!glide.began) glide.began = time;
    const part = Math.min(1, (time - glide.began) / GLIDE);
    const eased = 1 - (1 - part) ** 3;
    const wanted = glide.from * (glide.to / glide.from) ** eased;
    viewport.zoomAt(wanted / viewport.zoom, glide.x, glide.y);
    if (part === 1) {
      glide = null;
      keep();
    }
  };
  const aim = (x, y) => {
    pointer.x = x;
    pointer.y = y;
    const inside = x !== null && x >= 0 && y >= 0 && x < viewport.width && y < viewport.height;
    const row = inside ? viewport.rowAt(y) : null;
    const key = inside ? viewport.columnAt(x) : null;
    pointer.row = key === null ? null : row;
    pointer.key = row === null ? null : key;
    showCell();
  };
  const showCell = () => {
    const state = store.get();
    const cell = pointer.row !== null ? pointer : state.row !== null && state.key !== null ? state : null;
    readout.show(state, cell, cell ? near(cell.row, cell.key) : "");
  };
  /** What the coarse pixel under the pointer covers. */
  const near = (row, key) => {
    const { level } = scenery.frame;
    if (!level || !tiles.sheet) return "";
    const [px, py] = [key >> level, row >> level];
    const tile = tiles.find(level, Math.floor(px / side), Math.floor(py / side), false);
    if (!tile) return "";
    const code = tile.codes[(py % side) * tile.width + (px % side)];
    const text = store.get().minus === null ? weightText(palette.weightOf(code)) : differenceText(palette.differenceOf(code));
    return `strongest of the ${2 ** level} × ${2 ** level} weights under this pixel ≈ ${text}`;
  };
  const stop = listenTo(plot, {
    pan(dx, dy) {
      glide = null;
      viewport.panBy(dx, dy);
      // No hover while dragging: the read-out would change with every frame.
      aim(null, null);
      moved();
    },
    zoom,
    hover(x, y) {
      aim(x, y);
      ask();
    },
    press(x, y) {
      plot.focus({ preventScroll: true });
      aim(x, y);
      const { row, key } = store.get();
      const again = row === pointer.row && key === pointer.key;
      store.set(again ? { row: null, key: null } : { row: pointer.row, key: pointer.key });
    },
  });
  const step = (rows, keys) => {
    const state = store.get();
    const start = { row: state.row ?? Math.floor(viewport.y), key: state.key ?? Math.floor(viewport.x) };
    const inside = (value, count) => Math.min(count - 1, Math.max(0, value));
    const row = inside(start.row + (state.row === null ? 0 : rows), viewport.rows);
    const key = inside(start.key + (state.key === null ? 0 : keys), viewport.columns);
    pointer.row = null;
    pointer.key = null;
    viewport.reveal(row, key);
    keep();
    store.set({ row, key });
  };

  // Sizes and heads ----------------------------------------------------------------------------------------------
  const arrangeRoom = () => {
    const width = Math.floor(area.clientWidth - room.left - room.right);
    const height = Math.floor(area.clientHeight - room.top);
    if (width < 2 || height < 2) return false;
    now.ratio = Math.min(SHARPEST, devicePixelRatio || 1);
    canvas.width = Math.round(width * now.ratio);
    canvas.height = Math.round(height * now.ratio);
    Object.assign(plot.style, { left: `${room.left}px`, top: `${room.top}px`, width: `${width}px`, height: `${height}px` });
    axes.resize(width, height, room, now.ratio);
    leftAxis.style.top = `${room.top}px`;
    const first = viewport.width <= 1;
    viewport.resize(width, height);
    if (first && store.get().v) goTo(store.get().v);
    return true;
  };
  const resize = () => {
    if (!arrangeRoom()) return;
    // Resizing a canvas clears it; redraw at once to avoid flicker.
    if (waiting) cancelAnimationFrame(waiting);
    render(performance.now());
  };
  /** A position from the URL refers to the final window: margins may still change. */
  const goTo = (text) => {
    viewport.fromText(text);
    address = text;
  };
  /** Tokens need more space than positions; the visible part stays in place while margins change. */
  const makeRoom = () => {
    const next = hasWords(viewport.zoom) ? spacious : NARROW;
    if (next.left === room.left && next.top === room.top && next.right === room.right) return;
    const whole = viewport.isWhole();
    viewport.x += (next.left - room.left) / viewport.zoom;
    viewport.y += (next.top - room.top) / viewport.zoom;
    room = next;
    arrangeRoom();
    if (whole) viewport.fit();
    else if (address) viewport.fromText(address);
  };
  const watcher = new ResizeObserver(resize);
  watcher.observe(area);
  const complain = (text) => {
    trouble.hidden = false;
    trouble.replaceChildren(h("strong", {}, "A part of this map could not be loaded. "), text);
  };
  const choose = (state) => {
    const site = scene.sites[state.site];
    const size = sizeOf(site, state.call);
    now.site = site;
    now.labels = seenBy(scene, state.variant);
    now.call = state.call;
    now.mini = null;
    trouble.hidden = true;
    viewport.reshape(size.queries, size.keys);
    tiles.turn(state);
    spacious = roomFor(rowName, size.queries, keyName, size.keys);
    plot.setAttribute("aria-label", `${headText(scene, state.site, state.head)}: ${countText(size.queries)} queries by ${countText(size.keys)} keys`);
    if (!size.queries || !size.keys) complain("This call had no queries or no keys.");
  };
  window.__regard = { ...window.__regard, frames: () => ({ ...counters, painter: painter.kind, level: scenery.frame.level, ready: now.ready === "true", zoom: viewport.zoom, x: viewport.x, y: viewport.y }) };

  return {
    element,
    update(state, changed) {
      if (["site", "head", "call", "variant", "minus"].some((name) => changed.has(name)) || !now.site) choose(state);
      if (["theme", "scale", "minus"].some((name) => changed.has(name))) {
        now.look = figureColors(palette);
        now.look.faint = now.look.soft;
        now.lines = { edge: rgbOf(now.look.line), accent: rgbOf(now.look.accent) };
        now.ground = ground(palette.theme());
        now.mini = null;
        colorPainter();
      }
      if (changed.has("v") && state.v !== ownText && viewport.width > 1) goTo(state.v);
      ownText = state.v;
      showCell();
      ask();
    },
    onKey(event) {
      const arrows = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
      if (arrows && event.shiftKey) step(...arrows);
      else if (event.key === "+" || event.key === "=") zoom(1.6, viewport.width / 2, viewport.height / 2, true);
      else if (event.key === "-" || event.key === "−" || event.key === "_") zoom(1 / 1.6, viewport.width / 2, viewport.height / 2, true);
      else if (event.key === "0") {
        glide = null; // stop a running zoom animation
        viewport.fit();
        moved();
      } else if (event.key === "Enter" && pointer.row !== null) store.set({ row: pointer.row, key: pointer.key });
      else return false;
      return true;
    },
    what() {
      const { level } = scenery.frame;
      const size = sizeOf(now.site, now.call);
      const note = source.note(store.get());
      return [
        h("span", { class: "how", title: exactnessTitle(now.site) }, exactnessText(now.site, note)),
        `${countText(size.queries)} × ${countText(size.keys)}`,
        level ? `strongest of each ${2 ** level} × ${2 ** level}` : null,
        now.sampled ? h("span", { class: "sampled", title: "Zoom in to see every row." }, "rows sampled") : null,
          ].filter(Boolean);
    },
    subject: () => matrixSubject(context, now.site, now.call),
    drawing: () => matrixDrawing(context, { viewport, tiles, side, level: scenery.frame.level, site: now.site, call: now.call, table: table() }),
    table: () => matrixTable(context, { viewport, site: now.site, call: now.call }),
    destroy() {
      readout.forget();
      cancelAnimationFrame(waiting);
      waiting = -1;
      clearTimeout(again);
      keep.cancel();
      stop();
      watcher.disconnect();
      tiles.destroy();
      painter.destroy();
      tell("");
    },
  };
}
