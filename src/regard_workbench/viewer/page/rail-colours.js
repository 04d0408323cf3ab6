// Colours of the head picker: each head by its pattern or by its entropy, with a legend that counts.

import { h, fill } from "./dom.js";

// Distinguishable with colour blindness, and dark enough for a small square.
const PATTERNS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#3a3ab8", "#56b4e9", "#8c2d6a", "#5c6b00", "#7f7f7f"];
const NONE = "mixed";

/** "previous token 0.93 · entropy 0.12 nats". */
export function factText(fact) {
  if (!fact) return "";
  const score = fact.pattern ? (fact.scores || {})[fact.pattern] : null;
  return [fact.pattern ? `${fact.pattern}${Number.isFinite(score) ? ` ${score.toFixed(2)}` : ""}` : "", Number.isFinite(fact.entropy) ? `entropy ${fact.entropy.toFixed(2)} nats` : ""].filter(Boolean).join(" · ");
}

/** Colour the cells (`"site head"` → button) and fill the legend; without facts or a choice all have one colour. */
export function colourByFacts(cells, legend, by, facts, palette) {
  const known = by && facts ? [...cells].map(([name, cell]) => ({ cell, fact: facts.of(...name.split(" ").map(Number)) })) : [];
  for (const [, cell] of cells) cell.style.background = "";
  fill(legend);
  if (!known.length) return;
  if (by === "entropy") {
    const values = known.map(({ fact }) => (fact ? fact.entropy : NaN)).filter(Number.isFinite);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    for (const { cell, fact } of known) if (fact && Number.isFinite(fact.entropy)) cell.style.background = palette.css(0.02 + 0.98 * (1 - (fact.entropy - low) / Math.max(1e-9, high - low)));
    fill(legend, h("p", { class: "rail-key" }, `dark: sharp (${low.toFixed(2)} nats), pale: spread out (${high.toFixed(2)} nats)`));
    return;
  }
  const counts = new Map();
  for (const { fact } of known) if (fact && fact.pattern) counts.set(fact.pattern, (counts.get(fact.pattern) || 0) + 1);
  const names = [...counts.keys()].sort((a, b) => (a === NONE) - (b === NONE) || counts.get(b) - counts.get(a));
  const colour = (pattern) => PATTERNS[Math.min(PATTERNS.length - 1, pattern === NONE ? PATTERNS.length - 1 : names.indexOf(pattern))];
  for (const { cell, fact } of known) if (fact && fact.pattern) cell.style.background = colour(fact.pattern);
  fill(legend, names.map((name) => h("p", { class: "rail-key" }, h("span", { class: "rail-swatch", style: { background: colour(name) }, "aria-hidden": "true" }), `${name} `, h("b", {}, String(counts.get(name))))));
}
