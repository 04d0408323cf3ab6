// Names of what a view shows: a head, the mean of a layer's heads, or a rollout; as text, as cells of a saved table, and
// in a file name. All three are defined here, so that a saved mean is never called a head.

import { headCount, siteName } from "./availability.js";
import { headText } from "./formatting.js";

/** What is followed through all layers. */
export const THROUGH = new Set(["rollout", "flow"]);
const LONGEST = 36; // characters of one part of a file name

/** "layer 3 · head 5", "layer 3 · mean of 12 heads" or "rollout through all layers". `how`: head, mean, rollout or flow. */
export function whoseText(scene, { site, head, variant }, how = "head") {
  if (THROUGH.has(how)) return `${how} through all layers`;
  const facts = scene.sites[site];
  return how === "mean" ? `${facts.label || facts.name} · mean of ${headCount(facts, variant)} heads` : headText(scene, site, head);
}

/** The first columns of a saved table. */
export const WHOSE = Object.freeze(["model", "site", "head"]);

/** Their contents. */
export function whoseCells(scene, { site, head, variant }, how = "head") {
  const model = (scene.variants[variant] || {}).name || scene.title;
  if (THROUGH.has(how)) return [model, "all layers", how];
  const facts = scene.sites[site];
  return [model, siteName(facts, variant), how === "mean" ? `mean of ${headCount(facts, variant)}` : head];
}

/** A file name without extension from parts; each part is cut, so that a long one leaves space for the others. */
export function fileName(...words) {
  const parts = words.flat().map((word) => String(word ?? "").replace(/[^\p{L}\p{N}_.-]+/gu, "-").replace(/^[-.]+|[-.]+$/g, ""));
  return parts.filter(Boolean).map((part) => part.slice(0, LONGEST)).join("-") || "attention";
}
