// Whose weights a view shows: one head's, the mean of a layer's, or a rollout's. In words, as cells of a saved table, and
// as a part of a file's name; all three from one place, so that a saved mean is never called a head.

import { headCount, siteName } from "./presence.js";
import { headText } from "./words.js";

const LONGEST = 36; // letters of one part of a file's name

/** "layer 3 · head 5", "layer 3 · mean of 12 heads" or "rollout through all layers". `how`: head, mean or rollout. */
export function whoseText(scene, { site, head, variant }, how = "head") {
  if (how === "rollout") return "rollout through all layers";
  const facts = scene.sites[site];
  return how === "mean" ? `${facts.label || facts.name} · mean of ${headCount(facts, variant)} heads` : headText(scene, site, head);
}

/** The first columns of a saved table. */
export const WHOSE = Object.freeze(["model", "site", "head"]);

/** What stands in them. */
export function whoseCells(scene, { site, head, variant }, how = "head") {
  const model = (scene.variants[variant] || {}).name || scene.title;
  if (how === "rollout") return [model, "all layers", "rollout"];
  const facts = scene.sites[site];
  return [model, siteName(facts, variant), how === "mean" ? `mean of ${headCount(facts, variant)}` : head];
}

/** A file's name without its ending, of words and lists of words. Each may be cut, so that a long one leaves room for the others. */
export function fileName(...words) {
  const parts = words.flat().map((word) => String(word ?? "").replace(/[^\p{L}\p{N}_.-]+/gu, "-").replace(/^[-.]+|[-.]+$/g, ""));
  return parts.filter(Boolean).map((part) => part.slice(0, LONGEST)).join("-") || "attention";
}
