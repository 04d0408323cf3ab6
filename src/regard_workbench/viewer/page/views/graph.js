// The graph view: one node in the middle, around it the nodes it attends to, joined by lines as wide as the weight.

import { h, fill, s } from "../dom.js";
import { headCount } from "../availability.js";
import { WHOSE, whoseCells, whoseText } from "../naming.js";
import { tokenText, weightText } from "../formatting.js";
import { barList, choice, newest, optionsOf, optionsText, readout } from "./components.js";
import { choosing, extentOf, positionOf, spreadOf, strongest, weightsFrom } from "./positions.js";
import { labelsOf } from "./text.js";
import { traced } from "./page-drawing.js";

const USUAL = { how: "head" };
const HOW = [
  ["head", "This head", "The weights of the chosen head"],
  ["mean", "Mean of layer", "The mean over all heads of the layer"],
];
const ALLOWED = { how: HOW.map(([name]) => name) };
const MOST = 40; // neighbours around a node
const SIZE = 560; // pixels a side
const RADIUS = 200;
const BAND = 14; // the width of a line of weight 1
const DOT = 9; // pixels, the radius of a node

export const graphView = {
  name: "graph",
  label: "Graph",
  key: "0",
  calls: false,
  keys: [
    ["[ ]", "the node before, the node after"],
    ["Tab", "from neighbour to neighbour"],
    ["Enter", "go to a neighbour"],
    ["m", "head, mean of layer"],
  ],
  available: (scene) => scene.sites.some((site) => site.rows === "nodes" && site.columns === "nodes"),
  create,
};

function create({ scene, source, store, palette }) {
  const ask = newest();
  const options = () => optionsOf(store.get().v, USUAL, ALLOWED);
  const set = (patch) => store.set({ v: optionsText({ ...options(), ...patch }, USUAL) });
  const how = choice({ label: "Whose weights", options: HOW, testid: "how", onChange: (value) => set({ how: value }) });
  const said = readout("graph-readout", "");
  const holder = h("div", { class: "graph-picture", data: { testid: "graph-picture" } });
  const list = barList({ title: "Attends to", testid: "attends-to", css: palette.css });
  const element = h(
    "div",
    { class: "sheet graph-view" },
    h("div", { class: "controls", data: { trace: "skip" } }, how.element),
    said.element,
    h("div", { class: "split" }, holder, h("aside", { class: "panel" }, list.element)),
  );
  let state = store.get();
  let site = scene.sites[state.site];
  let found = null; // {at, weights, labels}

  function chosen() {
    return positionOf(site, state) ?? 0; // a node that was asked for is the first
  }

  function go(index) {
    if (index >= 0 && index < extentOf(site).queries) store.set({ ...choosing(site, index), key: null });
  }

  function look() {
    const at = chosen();
    const asked = state;
    const labels = labelsOf(scene, state.variant, site.columns, extentOf(site).keys);
    ask(
      () => weightsFrom(source, scene, asked, at, options().how),
      (weights) => {
        found = { at, weights, labels };
        paint();
      },
      (words) => {
        found = null;
        fill(holder);
        list.show([], words);
        said.say(words);
      },
      () => asked === state,
    );
  }

  function paint() {
    const { at, weights, labels } = found;
    const others = strongest(weights, MOST + 1).filter(({ index }) => index !== at);
    const near = others.slice(0, MOST);
    const middle = SIZE / 2;
    const spots = near.map(({ index, weight }, place) => {
      const angle = (2 * Math.PI * place) / near.length - Math.PI / 2;
      return { index, weight, x: middle + RADIUS * Math.cos(angle), y: middle + RADIUS * Math.sin(angle) };
    });
    // Faint lines first, strong ones above them.
    const lines = [...spots].reverse().map(({ index, weight, x, y }) =>
      s("path", {
        d: `M${middle} ${middle} L${round(x)} ${round(y)}`,
        stroke: palette.css(weight),
        "stroke-width": Math.max(1, BAND * weight),
        class: "graph-edge",
        data: { testid: `edge-${index}` },
      }),
    );
    const own = { index: at, weight: weights[at] || 0, x: middle, y: middle };
    const picture = s(
      "svg",
      { width: SIZE, height: SIZE, role: "group", "aria-label": "A node and what it attends to" },
      lines,
      [own, ...spots].map((spot) => node(spot, labels[spot.index], spot === own)),
    );
    fill(holder, picture);
    const items = strongest(weights, MOST).map(({ index, weight }) => ({
      text: tokenText(labels[index], 24),
      title: tokenText(labels[index], 200),
      detail: index === at ? "itself" : String(index),
      weight,
      onPick: () => go(index),
    }));
    const more = others.length > near.length ? `; the ${MOST} strongest are drawn` : "";
    list.show(items, `spread over about ${spreadOf(weights)} nodes${more}`);
    said.say(`${tokenText(labels[at], 60)}   ·   ${whoseText(scene, state, options().how)}`);
  }

  function node({ index, weight, x, y }, label, central) {
    const below = y >= SIZE / 2;
    return s(
      "g",
      {
        class: central ? "graph-node central" : "graph-node",
        tabindex: 0,
        role: "button",
        "aria-label": `${tokenText(label, 60)} ${weightText(weight)}`,
        data: { testid: `node-${index}` },
        on: {
          click: () => go(index),
          keydown: (event) => event.key === "Enter" && go(index),
        },
      },
      s("circle", { cx: round(x), cy: round(y), r: DOT, fill: palette.css(weight), class: "graph-dot" }),
      s(
        "text",
        { x: round(x), y: round(y + (below ? DOT + 15 : -DOT - 6)), "text-anchor": "middle", "font-size": 12 },
        `${tokenText(label, 18)} ${weightText(weight)}`,
      ),
    );
  }

  return {
    element,
    update(next) {
      state = next;
      site = scene.sites[state.site];
      how.set(options().how);
      how.enable("mean", headCount(site, state.variant) > 1);
      look();
    },
    onKey(event) {
      if (event.key === "m") set({ how: options().how === "head" ? "mean" : "head" });
      else if (event.key === "[" || event.key === "]") go(chosen() + (event.key === "[" ? -1 : 1));
      else return false;
      return true;
    },
    difference: () => false,
    subject: () => whoseText(scene, state, options().how),
    drawing: () => traced(element, palette),
    table() {
      const cells = whoseCells(scene, state, options().how);
      const { at, weights, labels } = found || { at: 0, weights: [], labels: [] };
      const rows = Array.from(weights, (weight, index) => [...cells, at, labels[at], index, labels[index], weight]);
      return { head: [...WHOSE, "node", "its name", "neighbour", "its name", "weight"], rows };
    },
    destroy() {
      ask.forget();
    },
  };
}

function round(value) {
  return Math.round(10 * value) / 10;
}
