// One head over the checkpoints of a run: a slider, the map at each checkpoint as a strip of film, and two curves.

import { h } from "../dom.js";
import { answered } from "../answer.js";
import { whoseText } from "../naming.js";
import { countText, headText, sizeOf, tokenText, weightText } from "../formatting.js";
import { apart } from "./compare.js";
import { createCurve } from "./curve.js";
import { createMap, createMaps } from "./map.js";
import { newest, player, readout } from "./components.js";
import { labelsOf } from "./text.js";
import { traced } from "./page-drawing.js";
import { codesCanvas } from "../figure.js";

const SMALLEST = 280; // pixels of the map's width
const ABOVE = 440; // pixels of everything above and below the map
const FILM = 96; // pixels of a map in the strip, at most

export const timelineView = {
  name: "timeline",
  label: "Timeline",
  key: "8",
  variants: false,
  keys: [
    ["[ ]", "checkpoint before, checkpoint after"],
    ["space", "play, pause"],
    ["Home End", "first, last checkpoint"],
  ],
  available: (scene) => Boolean(scene.timeline) && scene.variants.length > 1,
  create,
};

function create({ scene, source, store, palette }) {
  const { timeline } = scene;
  const count = scene.variants.length;
  const steps = scene.variants.map((variant, index) => variant.step ?? timeline.steps[index] ?? index);
  const load = createMaps(source, Math.max(48, 2 * count));
  const ask = newest();
  const stepText = (index) => `step ${countText(steps[index])}`;
  const go = (variant) => store.set({ variant });
  const play = player({ count, what: "checkpoint", testid: "timeline", onGo: go, wordsOf: stepText, wait: 600 });
  const said = readout("timeline-readout", "");
  const map = createMap({
    title: "",
    testid: "timeline-map",
    onCell: (cell) => point(cell),
    onPick: (cell) => store.set({ row: cell.row, key: cell.column }),
  });
  const frames = scene.variants.map((variant, index) => {
    const canvas = h("canvas", { class: "film-canvas", "aria-hidden": "true" });
    const button = h(
      "button",
      {
        type: "button",
        class: "film-frame",
        title: variant.name,
        data: { testid: `checkpoint-${index}` },
        on: { click: () => go(index) },
      },
      canvas,
      h("span", {}, countText(steps[index])),
    );
    return { canvas, button, map: null };
  });
  const film = h(
    "div",
    { class: "film", role: "group", "aria-label": "Checkpoints" },
    frames.map((frame) => frame.button),
  );
  const metric =
    timeline.metric && timeline.metric.values && timeline.metric.values.some(Number.isFinite)
      ? createCurve({
          title: timeline.metric.name,
          xs: steps,
          values: timeline.metric.values.slice(0, count),
          onPick: go,
          testid: "metric-curve",
        })
      : null;
  const moving = createCurve({
    title: "weight not yet where it ends",
    xs: steps,
    values: steps.map(() => null),
    share: true,
    onPick: go,
    testid: "moving-curve",
  });
  const element = h(
    "div",
    { class: "sheet timeline-view" },
    h("div", { class: "controls", data: { trace: "skip" } }, play.element),
    said.element,
    film,
    h(
      "div",
      { class: "split even" },
      map.element,
      h("aside", { class: "curves" }, metric && metric.element, moving.element),
    ),
  );
  let state = store.get();
  let drawn = "";

  const where = (variant) => ({ variant, site: state.site, head: state.head, call: state.call });
  const here = () => `${state.site} ${state.head} ${state.call}`;

  /** The strip for the selected head; each frame appears when it is loaded. */
  function shoot() {
    const size = sizeOf(scene.sites[state.site], state.call);
    const mine = here();
    frames.forEach((frame, index) => {
      frame.map = null;
      load(where(index), size, FILM).then(
        (found) => {
          if (mine !== here()) return;
          frame.map = found;
          develop(frame);
          measure();
        },
        () => frame.button.classList.add("failed"),
      );
    });
  }

  function develop(frame) {
    if (frame.map) codesCanvas(frame.map.codes, frame.map.width, frame.map.height, palette.table(), frame.canvas);
  }

  /** How far each checkpoint's map is from the last one's. */
  function measure() {
    const last = frames[count - 1].map;
    if (!last) return;
    moving.show(frames.map((frame) => (frame.map ? apart(frame.map.codes, last.codes, palette.weightOf) : null)));
    moving.choose(state.variant);
  }

  function draw() {
    const site = scene.sites[state.site];
    const size = sizeOf(site, state.call);
    const labels = {
      rows: labelsOf(scene, state.variant, site.rows, size.queries + (size.start || 0)).slice(size.start || 0),
      columns: labelsOf(scene, state.variant, site.columns, size.keys),
    };
    ask(
      () => load(where(state.variant), size),
      (found) => {
        // As large as the window allows below the strip.
        map.limit(Math.max(SMALLEST, (window.innerHeight - ABOVE) * Math.min(2.4, size.keys / size.queries)));
        map.show(found, palette.table(), labels);
        play.tell(state.variant);
        map.caption(`${headText(scene, state.site, state.head)} at ${stepText(state.variant)}`);
        point(null);
      },
      (words) => {
        map.say(words);
        play.tell(state.variant);
      },
    );
  }

  function summary() {
    const value = timeline.metric && timeline.metric.values ? timeline.metric.values[state.variant] : null;
    return `${stepText(state.variant)}, checkpoint ${state.variant} of 0–${count - 1}${answered(scene, state.variant)}${Number.isFinite(value) ? `   ·   ${timeline.metric.name} ${Number(value.toPrecision(4))}` : ""}`;
  }

  function point(cell) {
    const at = cell || (state.row === null ? null : { row: state.row, column: state.key ?? 0 });
    map.cursor(at);
    if (!at) return said.say(summary());
    const site = scene.sites[state.site];
    const start = sizeOf(site, state.call).start || 0;
    const name = (kind, index) => `“${tokenText(labelsOf(scene, state.variant, kind, index + 1)[index], 24)}”`;
    return source.row({ ...where(state.variant), row: at.row }).then(
      (weights) =>
        said.say(
          `${summary()}   ·   ${name(site.rows, start + at.row)} → ${name(site.columns, at.column)} ${weightText(weights[at.column])}`,
        ),
      (problem) => said.say(problem.message),
    );
  }

  return {
    element,
    update(next, changed) {
      state = next;
      play.set(state.variant);
      frames.forEach((frame, index) => {
        frame.button.classList.toggle("here", index === state.variant);
        frame.button.setAttribute("aria-current", String(index === state.variant));
      });
      if (changed.has("variant") || changed.has("view"))
        frames[state.variant].button.scrollIntoView({ block: "nearest", inline: "nearest" });
      if (here() !== drawn) {
        drawn = here();
        shoot();
      }
      if (changed.has("theme") || changed.has("scale")) frames.forEach(develop);
      if (metric) metric.choose(state.variant);
      moving.choose(state.variant);
      draw();
    },
    onKey(event) {
      if (map.onKey(event) || play.onKey(event)) return true;
      if (event.key === "Home") go(0);
      else if (event.key === "End") go(count - 1);
      else return false;
      return true;
    },
    difference: () => false,
    subject: () => [whoseText(scene, state), stepText(state.variant)],
    drawing: () => traced(element, palette),
    table() {
      const last = frames[count - 1].map;
      const rows = steps.map((step, index) => {
        const own = frames[index].map;
        return [
          step,
          scene.variants[index].name,
          timeline.metric && timeline.metric.values ? (timeline.metric.values[index] ?? "") : "",
          own && last ? apart(own.codes, last.codes, palette.weightOf) : "",
        ];
      });
      return {
        head: ["step", "checkpoint", timeline.metric ? timeline.metric.name : "metric", "weight not yet where it ends"],
        rows,
      };
    },
    destroy() {
      play.stop();
      ask.forget();
    },
  };
}
