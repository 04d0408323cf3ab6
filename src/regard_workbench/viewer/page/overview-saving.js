// The overview as a picture and as a table.

import { Drawing } from "./drawing.js";
import { addLegend, codesCanvas, figureColors, headingOf } from "./figure.js";
import { textWidth } from "./marks.js";
import { WHOSE, whoseCells } from "./naming.js";

const CELL = 52;
const GAP = 5;
const MOST_ACROSS = 12;
const LABEL = { size: 10 };

/** A vector picture: labels as text, each map as a small image. */
export function overviewDrawing({ scene, palette }, { overview, groups }) {
  const colors = figureColors(palette);
  const left = Math.max(110, ...groups.map((group) => Math.ceil(textWidth(group.label, LABEL)) + 28));
  const across = Math.max(...groups.map((group) => Math.min(group.heads.length, MOST_ACROSS)));
  const lines = groups.map((group) => Math.ceil(group.heads.length / MOST_ACROSS));
  const step = groups.some((group) => group.captions) ? CELL + GAP + 11 : CELL + GAP;
  const heading = headingOf(scene.title || "Attention", "", Math.max(420, left + across * (CELL + GAP) + 16), palette);
  const height = heading.height + 28 + lines.reduce((sum, count) => sum + count * step, 0) + groups.length * 2 + 48;
  const drawing = new Drawing(heading.width, height, colors.paper);
  heading.add(drawing);
  const indices = new Map(overview.heads.map(([site, head], index) => [`${site} ${head}`, index]));
  let top = heading.height + 20;
  groups.forEach((group, number) => {
    drawing.text(left - 12, top + CELL / 2 + 4, group.label, { ...LABEL, fill: colors.soft, anchor: "end" });
    group.heads.forEach(([site, head], index) => {
      const x = left + (index % MOST_ACROSS) * (CELL + GAP);
      const y = top + Math.floor(index / MOST_ACROSS) * step;
      const codes = overview.of(indices.get(`${site} ${head}`));
      drawing.image(codesCanvas(codes, overview.size, overview.size, palette.table()), x, y, CELL, CELL);
      drawing.rect(x, y, CELL, CELL, { fill: null, stroke: colors.line, width: 0.5 });
      if (group.captions) drawing.text(x + CELL / 2, y + CELL + 9, group.captions(site, head), { size: 7, fill: colors.soft, anchor: "middle" });
    });
    top += lines[number] * step + 2;
  });
  addLegend(drawing, left, top + 14, palette);
  return drawing;
}

/** One line for each head. */
export function overviewTable({ scene, store }, { overview, facts }) {
  const { variant } = store.get();
  const patterns = new Set();
  for (const [site, head] of overview.heads) for (const name of Object.keys((facts && facts.of(site, head)?.scores) || {})) patterns.add(name);
  const rows = overview.heads.map(([site, head]) => {
    const fact = (facts && facts.of(site, head)) || {};
    const scores = [...patterns].map((name) => (fact.scores || {})[name] ?? "");
    return [...whoseCells(scene, { site, head, variant }), fact.entropy ?? "", fact.pattern || "", fact.cluster ?? "", fact.importance ?? "", ...scores];
  });
  return { head: [...WHOSE, "entropy", "pattern", "cluster", "importance", ...patterns], rows };
}
