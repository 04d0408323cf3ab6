// A memory over time: where each head wrote and read, slots down and steps across, all heads below each other.

import { h, fill } from "../dom.js";
import { tokenText, weightText } from "../words.js";
import { createMap, createMaps, mapOfRows, turned } from "./map.js";
import { allRows, extentOf, strongest, weightsFrom, weightsTo } from "./places.js";
import { barList, newest, readout } from "./parts.js";
import { labelsOf } from "./text.js";
import { traced } from "./tracing.js";

const LISTED = 3;

export const memoryView = {
  name: "memory",
  label: "Memory",
  key: "7",
  rail: false,
  calls: false,
  keys: [
    ["← →", "step before, step after"],
    ["↑ ↓", "slot above, slot below"],
    ["[ ]", "step before, step after"],
    ["Enter", "let go"],
  ],
  available: (scene) => Boolean(scene.memory && rolesOf(scene).length),
  create,
};

/** Every head that writes or reads: `[{site, head, role, timeDown}]`; `timeDown`: steps are the rows of its weights. */
function rolesOf(scene) {
  const of = (role) =>
    (scene.memory[role] || []).flatMap((site) => {
      const facts = scene.sites[site];
      return facts
        ? Array.from({ length: facts.heads }, (_, head) => ({ site, head, role, timeDown: facts.rows !== "slots" }))
        : [];
    });
  return [...of("write"), ...of("read")];
}

function create({ scene, source, store, palette }) {
  const ask = newest();
  const load = createMaps(source);
  const roles = rolesOf(scene);
  const said = readout("memory-readout", "Point at a map; a click keeps the place.");
  const panel = h("aside", { class: "panel" });
  const tall = `${Math.max(90, Math.min(240, Math.round(420 / roles.length)))}px`;
  const parts = roles.map((role, index) => {
    const { queries, keys } = extentOf(scene.sites[role.site]);
    const [slots, steps] = role.timeDown ? [keys, queries] : [queries, keys];
    const label = `${role.role === "write" ? "Writes" : "Reads"}${scene.sites[role.site].heads > 1 ? `, head ${role.head + 1}` : ""}`;
    const map = createMap({
      title: label,
      testid: `memory-${role.role}-${index}`,
      height: tall,
      onCell: (cell) => hover(cell),
      onPick: (cell) => keep(cell),
    });
    const bars = barList({ title: label, testid: `memory-top-${index}`, css: palette.css });
    return { ...role, label, map, bars, slots, steps, picture: null };
  });
  fill(
    panel,
    parts.map((part) => part.bars.element),
  );
  const element = h(
    "div",
    { class: "sheet memory-view" },
    said.element,
    h(
      "div",
      { class: "split" },
      h(
        "div",
        { class: "stack" },
        parts.map((part) => part.map.element),
      ),
      panel,
    ),
  );
  const steps = Math.max(...parts.map((part) => part.steps));
  const slots = Math.max(...parts.map((part) => part.slots));
  let state = store.get();
  let drawn = "";
  let hovered = null; // {row: slot, column: step}
  let exact = [];

  const names = (part) => {
    const facts = scene.sites[part.site];
    const [slotKind, timeKind] = part.timeDown ? [facts.columns, facts.rows] : [facts.rows, facts.columns];
    return {
      rows: labelsOf(scene, state.variant, slotKind, part.slots),
      columns: labelsOf(scene, state.variant, timeKind, part.steps),
    };
  };

  /** The place that is kept in the state, whichever head it was chosen in. */
  function kept() {
    const part = parts.find((candidate) => candidate.site === state.site);
    if (!part) return null;
    const [slot, step] = part.timeDown ? [state.key, state.row] : [state.row, state.key];
    return step === null ? null : { row: slot ?? 0, column: step };
  }

  function keep(cell) {
    const part = parts.find((candidate) => candidate.site === state.site) || parts[0];
    const inside = { slot: Math.min(cell.row, part.slots - 1), step: Math.min(cell.column, part.steps - 1) };
    store.set({
      site: part.site,
      ...(part.timeDown ? { row: inside.step, key: inside.slot } : { row: inside.slot, key: inside.step }),
    });
  }

  function hover(cell) {
    hovered = cell;
    look();
  }

  function draw() {
    for (const part of parts) {
      const where = { variant: state.variant, site: part.site, head: part.head };
      const facts = scene.sites[part.site];
      // One call holds the whole story; a memory that was called step by step is put together from its rows.
      const asked =
        facts.calls.length === 1
          ? load(where, facts.calls[0])
          : allRows(source, scene, where).then((lines) => mapOfRows(lines, extentOf(facts).keys, palette.codeOf));
      asked.then(
        (map) => {
          part.picture = part.timeDown ? turned(map) : map;
          // The steps are named once, above the first map.
          part.map.show(
            part.picture,
            palette.table(),
            part === parts[0] ? names(part) : { ...names(part), columns: [] },
          );
          look();
        },
        (problem) => part.map.say(problem.message),
      );
    }
  }

  function look() {
    const at = hovered || kept() || { row: 0, column: 0 };
    for (const part of parts) part.map.cursor(hovered || kept() ? at : null);
    ask(
      () =>
        Promise.all(
          parts.map((part) =>
            (part.timeDown ? weightsFrom : weightsTo)(
              source,
              scene,
              { ...state, site: part.site, head: part.head },
              Math.min(at.column, part.steps - 1),
            ),
          ),
        ),
      (lines) => {
        exact = lines;
        list(at);
      },
      (words) => said.say(words),
    );
  }

  function list(at) {
    parts.forEach((part, index) => {
      const { rows, columns } = names(part);
      const items = strongest(exact[index], LISTED).map(({ index: slot, weight }) => ({
        text: tokenText(rows[slot], 20),
        weight,
        onPick: () => keep({ row: slot, column: at.column }),
      }));
      part.bars.show(items, "", `${part.label} at ${tokenText(columns[Math.min(at.column, part.steps - 1)], 16)}`);
    });
    if (!hovered && !kept()) return said.say("");
    const { rows, columns } = names(parts[0]);
    const numbers = parts.map((part, index) => `${part.label.toLowerCase()} ${weightText(exact[index][at.row] ?? 0)}`);
    return said.say(
      `${tokenText(rows[at.row], 20)} at ${tokenText(columns[at.column], 20)}:   ${numbers.join("   ·   ")}${origin(at)}`,
    );
  }

  /** When a slot was written most, before or at a step. */
  function origin(at) {
    let best = { weight: 0, step: -1 };
    for (const part of parts) {
      if (part.role !== "write" || !part.picture || part.picture.level) continue;
      for (let step = 0; step <= Math.min(at.column, part.steps - 1); step += 1) {
        const weight = palette.weightOf(part.picture.codes[at.row * part.picture.width + step]);
        if (weight > best.weight) best = { weight, step };
      }
    }
    if (best.weight < 0.1) return "";
    return `   ·   so far written most at ${tokenText(names(parts[0]).columns[best.step], 20)}`;
  }

  function move(slot, step) {
    const from = kept() || { row: 0, column: 0 };
    hovered = null;
    keep({
      row: Math.min(slots - 1, Math.max(0, from.row + slot)),
      column: Math.min(steps - 1, Math.max(0, from.column + step)),
    });
  }

  return {
    element,
    update(next, changed) {
      state = next;
      if (!parts.some((part) => part.site === state.site)) {
        queueMicrotask(() => store.set({ site: parts[0].site, head: 0, row: null, key: null }));
        return;
      }
      const wanted = `${state.variant} ${palette.theme()} ${palette.scale()}`;
      if (wanted !== drawn || changed.has("view")) {
        drawn = wanted;
        draw();
      }
      look();
    },
    onKey(event) {
      const by = {
        ArrowLeft: [0, -1],
        ArrowRight: [0, 1],
        ArrowUp: [-1, 0],
        ArrowDown: [1, 0],
        "[": [0, -1],
        "]": [0, 1],
      }[event.key];
      if (by) move(...by);
      else if (event.key === "Enter" && kept()) store.set({ row: null, key: null });
      else return false;
      return true;
    },
    difference: () => false,
    drawing: () => traced(element, palette),
    async table() {
      const rows = [];
      for (const part of parts) {
        const lines = await allRows(source, scene, { variant: state.variant, site: part.site, head: part.head });
        const { rows: slotNames, columns } = names(part);
        lines.forEach((line, index) =>
          line.forEach((weight, other) => {
            const [slot, step] = part.timeDown ? [other, index] : [index, other];
            rows.push([part.role, part.head + 1, columns[step], slotNames[slot], weight]);
          }),
        );
      }
      return { head: ["does", "head", "step", "slot", "weight"], rows };
    },
    destroy: () => ask.forget(),
  };
}
