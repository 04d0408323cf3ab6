// Attention over an image: select a patch, the class token or a word to see its weights over all patches.

import { h, fill } from "../dom.js";
import { headCount } from "../availability.js";
import { WHOSE, whoseCells, whoseText } from "../naming.js";
import { tokenText, weightText } from "../formatting.js";
import { createOverlay, patchText, pictureClass } from "./overlay.js";
import { choosing, extentOf, positionOf, strongest, weightsFrom, weightsTo } from "./positions.js";
import { barList, choice, newest, optionsOf, optionsText, readout } from "./components.js";
import { createText, labelsOf } from "./text.js";
import { traced } from "./page-drawing.js";

const USUAL = { how: "head", way: "from", opacity: 65, smooth: "no" };
const HOW = [
  ["head", "This head"],
  ["mean", "Mean of layer"],
  ["rollout", "Rollout", "Attention followed through all layers"],
];
const WAY = [
  ["from", "Looks at", "The weights of the selected query over the patches"],
  ["to", "Looked at by", "How much each patch attends to the selected one"],
];
const SMOOTH = [
  ["yes", "Smooth"],
  ["no", "Blocks"],
];
const ALLOWED = { how: HOW.map(([name]) => name), way: ["from", "to"], smooth: ["yes", "no"] };
const LISTED = 8;
const DRAWN = ["patches", "steps", "frames"]; // kinds of positions that a picture is cut into

export const imageView = {
  name: "image",
  label: "Image",
  key: "5",
  keys: [
    ["Tab", "into the picture"],
    ["← → ↑ ↓", "in the picture: patch by patch"],
    ["Enter", "pin or let go"],
    ["m", "head, mean of layer, rollout"],
    ["d", "looks at, looked at by"],
    ["b", "smooth, blocks"],
    ["− +", "fainter, stronger colours"],
  ],
  available: (scene) => Boolean(scene.image) && fitting(scene).length > 0,
  create,
};

/** Sites whose keys are the patches of the picture, or its steps side by side. */
function fitting(scene) {
  const needed = scene.image.skip + scene.image.rows * scene.image.columns;
  return scene.sites.flatMap((site, index) =>
    DRAWN.includes(site.columns) && extentOf(site).keys === needed ? [index] : [],
  );
}

function create({ scene, source, store, palette, changed: redraw = () => {} }) {
  const { image } = scene;
  const sites = fitting(scene);
  const ask = newest();
  const options = () => optionsOf(store.get().v, USUAL, ALLOWED);
  const set = (patch) => store.set({ v: optionsText({ ...options(), ...patch }, USUAL) });
  const pickers = {
    how: choice({ label: "Whose weights", options: HOW, testid: "how", onChange: (how) => set({ how }) }),
    way: choice({ label: "Which way", options: WAY, testid: "way", onChange: (way) => set({ way }) }),
    smooth: choice({ label: "Edges", options: SMOOTH, testid: "smooth", onChange: (smooth) => set({ smooth }) }),
  };
  const slider = h("input", {
    type: "range",
    min: 0,
    max: 100,
    step: 5,
    "aria-label": "Opacity of the colours",
    data: { testid: "opacity" },
    on: { input: () => set({ opacity: Number(slider.value) }) },
  });
  const overlay = createOverlay({
    image,
    palette,
    onEnter: (patch) => enter(patch),
    onPick: (patch) => pick(patch + image.skip),
  });
  const said = readout("image-readout", "Point at the picture; a click pins a place.");
  const others = h("div", { class: "askers" });
  const plain = h(
    "section",
    {},
    h("h3", {}, "The image"),
    h("img", { class: pictureClass(image, "plain-picture"), src: image.data, alt: "The picture the model saw" }),
  );
  const kind = scene.sites[sites[0]].columns;
  const list = barList({ title: `Strongest ${kind}`, testid: "strongest", css: () => "var(--soft)" });
  const element = h(
    "div",
    { class: "sheet image-view" },
    h(
      "div",
      { class: "controls", data: { trace: "skip" } },
      pickers.how.element,
      pickers.way.element,
      pickers.smooth.element,
      h("label", { class: "labelled" }, "Colours", slider),
    ),
    said.element,
    h(
      "div",
      { class: "split" },
      h("div", { class: "texts" }, others, overlay.element),
      h("aside", { class: "panel" }, list.element, plain),
    ),
  );
  let state = store.get();
  let site = null;
  let words = null; // the asking words of a caption, or the class token of a classifier
  let hovered = 0;
  let found = null;

  const patchy = () => DRAWN.includes(site.rows);
  const place = (patch) =>
    site.columns === "patches"
      ? patchText(image, patch)
      : `“${tokenText(labelsOf(scene, state.variant, site.columns, patch + image.skip + 1).at(-1), 24)}”`;
  const askers = () =>
    patchy()
      ? labelsOf(scene, state.variant, site.rows, image.skip)
      : labelsOf(scene, state.variant, site.rows, extentOf(site).queries);
  const chosen = () => positionOf(site, state) ?? hovered;
  const name = (position) =>
    patchy() && position >= image.skip
      ? place(position - image.skip)
      : `“${tokenText(askers()[position], 30)}”`;

  /** Which weights are shown: a rollout starts at a patch. */
  function mode() {
    const { how } = options();
    return how === "rollout" && !patchy() ? "head" : how;
  }

  function build() {
    const labels = askers();
    words = labels.length
      ? createText({
          title: patchy() ? "" : site.rows === "slots" ? "Slots (queries)" : "Queries",
          kind: patchy() ? "askers" : site.rows,
          labels,
          palette,
          onEnter: (index) => index !== null && hover(index),
          onPick: pick,
        })
      : null;
    fill(others, words && words.element);
    hovered = 0;
  }

  function enter(patch) {
    const pinned = positionOf(site, state) !== null;
    if (patch === null) said.say(summary());
    else if (patchy() && !pinned) hover(patch + image.skip);
    else if (found)
      said.say(
        `${name(chosen())} ${options().way === "from" ? "→" : "←"} ${place(patch)}   ${weightText(found[patch + image.skip])}`,
      );
  }

  function hover(position) {
    if (positionOf(site, state) !== null) return;
    hovered = position;
    look();
  }

  function pick(position) {
    hovered = position;
    if (!patchy() && position >= askers().length) return;
    store.set(positionOf(site, state) === position ? { row: null } : choosing(site, position));
  }

  function look() {
    const { way } = options();
    const how = mode();
    const position = chosen();
    // Only patches are keys; words are only queries.
    const back = way === "to" && patchy() && how !== "rollout";
    ask(
      () => (back ? weightsTo : weightsFrom)(source, scene, state, position, how),
      (weights) => {
        found = weights;
        paint();
      },
      (text) => {
        found = null;
        paint();
        said.say(text);
      },
    );
  }

  function paint() {
    const { opacity, smooth } = options();
    const position = chosen();
    const pinned = positionOf(site, state) !== null;
    overlay.show(found && found.subarray(image.skip), { opacity: opacity / 100, smooth: smooth === "yes" });
    overlay.choose(patchy() ? position - image.skip : null, pinned);
    if (words) words.choose(position < words.tokens.length ? position : null, pinned);
    const labels = labelsOf(scene, state.variant, site.columns, image.skip);
    list.show(
      strongest(found, LISTED).map(({ index, weight }) => ({
        text: index < image.skip ? tokenText(labels[index], 24) : place(index - image.skip),
        weight,
        onPick: patchy() ? () => pick(index) : null,
      })),
      shareText(labels),
    );
    said.say(summary());
    redraw();
  }

  /** The share of weight outside the image. */
  function shareText(labels) {
    if (!found || !image.skip || options().way === "to") return "";
    const away = found.subarray(0, image.skip).reduce((sum, weight) => sum + weight, 0);
    return `${(100 * away).toFixed(away < 0.1 ? 1 : 0)} % of the weight is not on the picture but on ${labels.map((label) => tokenText(label, 16)).join(", ")}`;
  }

  function summary() {
    return `${name(chosen())}   ·   ${whoseText(scene, state, mode())}${positionOf(site, state) === null ? "" : "   ·   pinned"}`;
  }

  return {
    element,
    update(next, changed) {
      state = next;
      if (!sites.includes(state.site)) {
        queueMicrotask(() => store.set({ site: sites.at(-1), row: null, key: null }));
        return;
      }
      const old = site;
      site = scene.sites[state.site];
      if (!old || old.rows !== site.rows || (changed.has("variant") && scene.variants.length > 1)) build();
      const now = options();
      for (const [part, picker] of Object.entries(pickers)) picker.set(now[part]);
      pickers.how.enable("rollout", patchy() && !source.embedded);
      pickers.how.enable("mean", headCount(site, state.variant) > 1);
      pickers.way.element.hidden = !patchy();
      slider.value = String(now.opacity);
      look();
    },
    onKey(event) {
      if (overlay.onKey(event) || (words && words.onKey(event))) return true;
      const now = options();
      const turn = (part) =>
        set({ [part]: ALLOWED[part][(ALLOWED[part].indexOf(now[part]) + 1) % ALLOWED[part].length] });
      if (event.key === "m") turn("how");
      else if (event.key === "d") turn("way");
      else if (event.key === "b") turn("smooth");
      else if (event.key === "+" || event.key === "=") set({ opacity: Math.min(100, now.opacity + 10) });
      else if (event.key === "-") set({ opacity: Math.max(0, now.opacity - 10) });
      else return false;
      return true;
    },
    difference: () => false,
    legend: () => overlay.legend(),
    drawing: () => traced(element, palette, { legend: false }),
    subject: () => whoseText(scene, state, mode()),
    table() {
      const rows = Array.from(found || [], (weight, index) => [
        ...whoseCells(scene, state, mode()),
        chosen(),
        index,
        index < image.skip ? "" : Math.floor((index - image.skip) / image.columns),
        index < image.skip ? "" : (index - image.skip) % image.columns,
        weight,
      ]);
      return {
        head: [
          ...WHOSE,
          "chosen position",
          "position",
          "row",
          "column",
          options().way === "to" ? "weight to the chosen one" : "weight of the chosen one",
        ],
        rows,
      };
    },
    destroy: () => ask.forget(),
  };
}
