// A memory over time: where each head wrote and read, slots down and steps across, all heads below each other.

import { h } from "../dom.js";
import { tokenText, weightText } from "../formatting.js";
import { createMap, createMaps, mapOfRows, turned } from "./map.js";
import { barList, choice, newest, optionsOf, optionsText, readout } from "./components.js";
import { allRows, extentOf, strongest, weightsFrom, weightsTo } from "./positions.js";
import { linesOf, stretchInUse } from "./slots.js";
import { labelsOf } from "./text.js";
import { traced } from "./page-drawing.js";

const USUAL = { slots: "used" };
const SLOTS = [
  ["used", "Slots in use"],
  ["all", "All slots"],
];
const ALLOWED = { slots: ["used", "all"] };
const SLOTS_EXPLAINED = "A slot is one row of the memory: a vector that stays until it is written again. At each step a write head chooses by its weights which slots it changes, and a read head from which slots it takes what the network answers with. Steps go from left to right, slots from above.";
const BITS = { input: "Input bits", output: "Output bits: the probability of a 1" };
const LISTED = 3;
const WRITTEN = 0.1; // the smallest weight that counts as writing

export const memoryView = {
  name: "memory",
  label: "Memory",
  key: "7",
  rail: false,
  calls: false,
  keys: [
    ["← → [ ]", "step before, step after"],
    ["↑ ↓", "slot above, slot below"],
    ["Enter", "let go"],
    ["d", "slots in use, all slots"],
  ],
  available: (scene) => Boolean(scene.memory && rolesOf(scene).length),
  create,
};

/** Every head that writes or reads: `[{site, head, role, timeDown}]`; `timeDown`: steps are the rows of its weights. */
function rolesOf(scene) {
  const heads = (role, site) => {
    const facts = scene.sites[site];
    const numbers = Array.from({ length: facts ? facts.heads : 0 }, (_, head) => head);
    return numbers.map((head) => ({ site, head, role, timeDown: facts.rows !== "slots" }));
  };
  return ["write", "read"].flatMap((role) => (scene.memory[role] || []).flatMap((site) => heads(role, site)));
}

function create({ scene, source, store, palette }) {
  const ask = newest();
  const load = createMaps(source);
  const roles = rolesOf(scene);
  const options = () => optionsOf(store.get().v, USUAL, ALLOWED);
  const set = (patch) => store.set({ v: optionsText({ ...options(), ...patch }, USUAL) });
  const which = choice({ label: "Which slots", options: SLOTS, testid: "slots", onChange: (slots) => set({ slots }) });
  const said = readout("memory-readout", "Point at a map; a click pins the cell.");
  const tall = `${Math.max(90, Math.min(240, Math.round(420 / roles.length)))}px`;
  const parts = roles.map(part);
  const slots = Math.max(...parts.map((one) => one.slots));
  const steps = Math.max(...parts.map((one) => one.steps));
  const { bits } = scene;
  const shown = bits ? ["input", "output"].map((name) => ({ name, rows: bits[name], map: createMap({ title: BITS[name], testid: `bits-${name}`, height: `${Math.min(120, 14 * (bits[name][0] || []).length + 10)}px` }) })) : [];
  const inAndOut = (name) => shown.filter((one) => one.name === name).map((one) => one.map.element);
  const maps = h(
    "div",
    { class: "stack" },
    inAndOut("input"),
    parts.map((one) => one.map.element),
    inAndOut("output"),
  );
  const panel = h(
    "aside",
    { class: "panel" },
    parts.map((one) => one.bars.element),
  );
  const controls = h("div", { class: "controls", data: { trace: "skip" } }, which.element);
  const element = h(
    "div",
    { class: "sheet memory-view" },
    h("p", { class: "quiet", data: { trace: "skip" } }, SLOTS_EXPLAINED),
    controls,
    said.element,
    h("div", { class: "split" }, maps, panel),
  );
  let state = store.get();
  let drawn = "";
  let order = []; // the slots that are shown, from above
  let hovered = null; // {slot, step}
  let exact = [];

  function part(role, index) {
    const facts = scene.sites[role.site];
    const { queries, keys } = extentOf(facts);
    const label = `${role.role === "write" ? "Writes" : "Reads"}${facts.heads > 1 ? `, head ${role.head}` : ""}`;
    const chosen = (cell) => cell && { slot: order[cell.row], step: cell.column };
    const map = createMap({
      title: label,
      testid: `memory-${role.role}-${index}`,
      height: tall,
      onCell: (cell) => hover(chosen(cell)),
      onPick: (cell) => keep(chosen(cell)),
    });
    const bars = barList({ title: label, testid: `memory-top-${index}`, css: palette.css });
    const [down, across] = role.timeDown ? [keys, queries] : [queries, keys];
    return { ...role, label, map, bars, slots: down, steps: across, picture: null };
  }

  function names(one) {
    const facts = scene.sites[one.site];
    const [slotKind, timeKind] = one.timeDown ? [facts.columns, facts.rows] : [facts.rows, facts.columns];
    return {
      slots: labelsOf(scene, state.variant, slotKind, one.slots),
      steps: labelsOf(scene, state.variant, timeKind, one.steps),
    };
  }

  /** The selected cell in the state, independent of the head. */
  function kept() {
    const one = parts.find((candidate) => candidate.site === state.site);
    if (!one) return null;
    const [slot, step] = one.timeDown ? [state.key, state.row] : [state.row, state.key];
    return step === null ? null : { slot: slot ?? 0, step };
  }

  function keep({ slot, step }) {
    const one = parts.find((candidate) => candidate.site === state.site) || parts[0];
    const [row, key] = one.timeDown ? [step, slot] : [slot, step];
    store.set({ site: one.site, row, key });
  }

  function hover(chosen) {
    hovered = chosen;
    look();
  }

  /** One call holds all steps; a memory called step by step is assembled from its rows. */
  async function pictureOf(one) {
    const where = { variant: state.variant, site: one.site, head: one.head };
    const facts = scene.sites[one.site];
    const map =
      facts.calls.length === 1
        ? await load(where, facts.calls[0])
        : mapOfRows(await allRows(source, scene, where), extentOf(facts).keys, palette.codeOf);
    return one.timeDown ? turned(map) : map;
  }

  async function draw() {
    const mine = drawn;
    await Promise.all(
      parts.map(async (one) => {
        try {
          one.picture = await pictureOf(one);
        } catch (problem) {
          one.picture = null;
          one.map.say(problem.message);
        }
      }),
    );
    if (mine !== drawn) return;
    const pictures = parts.flatMap((one) => (one.picture ? [one.picture] : []));
    const whole = pictures.every((picture) => picture.level === 0 && picture.height === slots);
    const stretch = whole ? stretchInUse(pictures, slots, palette.weightOf) : null;
    const all = Array.from({ length: slots }, (_, slot) => slot);
    controls.hidden = !stretch;
    order = (options().slots === "used" && stretch) || all;
    for (const one of parts) {
      if (!one.picture) continue;
      const shown = order === all ? one.picture : linesOf(one.picture, order);
      const { slots: rows, steps: columns } = names(one);
      // The steps are named once, above the first map.
      one.map.show(shown, palette.table(), {
        rows: order.map((slot) => rows[slot]),
        columns: one === parts[0] ? columns : [],
      });
    }
    // Labels as wide as those of the slots, so that steps lie below each other.
    const widest = Math.max(...order.map((slot) => tokenText(names(parts[0]).slots[slot], 16).length));
    for (const one of shown) {
      const width = (one.rows[0] || []).length;
      const lines = Array.from({ length: width }, (_, bit) => Float32Array.from(one.rows, (row) => row[bit]));
      one.map.show(mapOfRows(lines, one.rows.length, palette.codeOf), palette.table(), { rows: lines.map((_, bit) => `bit ${bit}`.padStart(widest, "\u2007")), columns: [] });
    }
    look();
  }

  function look() {
    const chosen = hovered || kept();
    const row = chosen ? order.indexOf(chosen.slot) : -1;
    for (const one of parts) one.map.cursor(row < 0 ? null : { row, column: chosen.step });
    const at = chosen || { slot: 0, step: 0 };
    const read = (one) =>
      (one.timeDown ? weightsFrom : weightsTo)(
        source,
        scene,
        { ...state, site: one.site, head: one.head },
        Math.min(at.step, one.steps - 1),
      );
    ask(
      () => Promise.all(parts.map(read)),
      (lines) => {
        exact = lines;
        list(at);
        said.say(chosen ? words(chosen) : "");
      },
      said.say,
    );
  }

  function list(at) {
    parts.forEach((one, index) => {
      const { slots: rows, steps: columns } = names(one);
      const items = strongest(exact[index], LISTED).map(({ index: slot, weight }) => ({
        text: tokenText(rows[slot], 20),
        weight,
        onPick: () => keep({ slot, step: at.step }),
      }));
      one.bars.show(items, "", `${one.label} at ${tokenText(columns[Math.min(at.step, one.steps - 1)], 16)}`);
    });
  }

  function words(chosen) {
    const { slots: rows, steps: columns } = names(parts[0]);
    const numbers = parts.map(
      (one, index) => `${one.label.toLowerCase()} ${weightText(exact[index][chosen.slot] ?? 0)}`,
    );
    const origin = lastWritten(chosen);
    const since = origin === null ? [] : [`so far written most at ${tokenText(columns[origin], 20)}`];
    return `${tokenText(rows[chosen.slot], 20)} at ${tokenText(columns[chosen.step], 20)}:   ${[...numbers, ...since].join("   ·   ")}`;
  }

  /** The step so far at which a slot was written most; null when it hardly was. */
  function lastWritten({ slot, step: now }) {
    let best = { weight: WRITTEN, step: null };
    for (const { role, picture } of parts) {
      if (role !== "write" || !picture || picture.level) continue;
      for (let step = 0; step <= Math.min(now, picture.width - 1); step += 1) {
        const weight = palette.weightOf(picture.codes[slot * picture.width + step]);
        if (weight > best.weight) best = { weight, step };
      }
    }
    return best.step;
  }

  function move(down, across) {
    const from = kept() || { slot: order[0] ?? 0, step: 0 };
    const row = Math.min(order.length - 1, Math.max(0, order.indexOf(from.slot) + down));
    hovered = null;
    keep({ slot: order[row], step: Math.min(steps - 1, Math.max(0, from.step + across)) });
  }

  return {
    element,
    update(next, changed) {
      state = next;
      if (!parts.some((one) => one.site === state.site)) {
        queueMicrotask(() => store.set({ site: parts[0].site, head: 0, row: null, key: null }));
        return;
      }
      which.set(options().slots);
      const wanted = [state.variant, palette.theme(), palette.scale(), options().slots].join(" ");
      if (wanted !== drawn || changed.has("view")) {
        drawn = wanted;
        draw();
      } else look();
    },
    onKey(event) {
      const ways = {
        ArrowLeft: [0, -1],
        ArrowRight: [0, 1],
        ArrowUp: [-1, 0],
        ArrowDown: [1, 0],
        "[": [0, -1],
        "]": [0, 1],
      };
      if (ways[event.key]) move(...ways[event.key]);
      else if (event.key === "Enter" && kept()) store.set({ row: null, key: null });
      else if (event.key === "d") set({ slots: options().slots === "used" ? "all" : "used" });
      else return false;
      return true;
    },
    difference: () => false,
    subject: () => "",
    drawing: () => traced(element, palette),
    async table() {
      const rows = [];
      for (const one of parts) {
        const lines = await allRows(source, scene, { variant: state.variant, site: one.site, head: one.head });
        const { slots: slotNames, steps: stepNames } = names(one);
        lines.forEach((line, index) =>
          line.forEach((weight, other) => {
            const [slot, step] = one.timeDown ? [other, index] : [index, other];
            rows.push([one.role, one.head, stepNames[step], slotNames[slot], weight]);
          }),
        );
      }
      return { head: ["does", "head", "step", "slot", "weight"], rows };
    },
    destroy: () => ask.forget(),
  };
}
