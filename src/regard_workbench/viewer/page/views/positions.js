// Positions of a text, and the weights from and to them.
// A model that generates with a cache is called once per step, so the row of a position is in the call that computed it;
// views use positions, and this file finds call and row.

import { headCount } from "../availability.js";
import { THROUGH } from "../naming.js";
import { sizeOf } from "../formatting.js";

const MOST_REQUESTS = 600;

/** For each position of a site's queries the first call that holds it: `[{call, row}]`; empty where there is none. */
export function positionsOf(site) {
  const rows = [];
  site.calls.forEach((size, call) => {
    for (let row = 0; row < size.queries; row += 1) rows[(size.start || 0) + row] ||= { call, row };
  });
  return rows;
}

/** The number of query positions and of key positions over all calls. */
export function extentOf(site) {
  let queries = 0;
  let keys = 0;
  for (const size of site.calls) {
    queries = Math.max(queries, (size.start || 0) + size.queries);
    keys = Math.max(keys, size.keys);
  }
  return { queries, keys };
}

/** The position of the state's call and row; null when no row is chosen. */
export function positionOf(site, state) {
  if (state.row === null || !site) return null;
  return (sizeOf(site, state.call).start || 0) + state.row;
}

/** The state patch that selects a position; a single call is left out, so links stay short. */
export function choosing(site, position) {
  if (position === null) return { row: null };
  const found = positionsOf(site)[position];
  if (!found) return { row: null };
  return { row: found.row, call: site.calls.length > 1 ? found.call : -1 };
}

/** Weights of one position over the keys. `how`: "head", "mean" (of the layer's heads), "rollout" or "flow". */
export async function weightsFrom(source, scene, where, position, how = "head") {
  if (THROUGH.has(how)) return source.through(how, { variant: where.variant, row: position, site: where.site });
  const site = scene.sites[where.site];
  const found = positionsOf(site)[position];
  if (!found) return null;
  return mean(
    headsOf(site, where, how).map((head) => source.row({ ...asked(where, head, found.call), row: found.row })),
  );
}

/** The weights of all query positions, one row each, padded to the longest; for short texts. */
export async function allRows(source, scene, where, how = "head") {
  const site = scene.sites[where.site];
  const { queries, keys } = extentOf(site);
  const lines = await Promise.all(
    Array.from({ length: queries }, (_, position) => weightsFrom(source, scene, where, position, how)),
  );
  return lines.map((line) => Float32Array.from({ length: keys }, (_, column) => (line && line[column]) || 0));
}

/** Weights of every query position for one key; null where there are none. */
export async function weightsTo(source, scene, where, key, how = "head") {
  if (THROUGH.has(how)) return null;
  const site = scene.sites[where.site];
  const heads = headsOf(site, where, how);
  if (heads.length * site.calls.length > MOST_REQUESTS) return null;
  return mean(heads.map((head) => columnOf(source, site, where, head, key)));
}

async function columnOf(source, site, where, head, key) {
  const column = new Float32Array(extentOf(site).queries);
  const rows = positionsOf(site);
  await Promise.all(
    site.calls.map(async (size, call) => {
      if (key >= size.keys) return;
      // The row of a step serves all of its keys and stays in the cache; a column would be requested for each key.
      const single = size.queries === 1;
      const got = single
        ? [(await source.row({ ...asked(where, head, call), row: 0 }))[key]]
        : await source.column({ ...asked(where, head, call), key });
      for (let row = 0; row < size.queries; row += 1) {
        const position = (size.start || 0) + row;
        if (rows[position].call === call) column[position] = got[row];
      }
    }),
  );
  return column;
}

function headsOf(site, { head, variant }, how) {
  return how === "mean" ? Array.from({ length: headCount(site, variant) }, (_, index) => index) : [head];
}

function asked(where, head, call) {
  return { variant: where.variant, site: where.site, head, call };
}

async function mean(promises) {
  const parts = await Promise.all(promises);
  if (parts.length === 1) return parts[0];
  const sum = new Float32Array(parts[0].length);
  for (const part of parts)
    for (let index = 0; index < sum.length; index += 1) sum[index] += part[index] / parts.length;
  return sum;
}

/** The largest numbers with their indices, largest first; zeros and gaps are left out. */
export function strongest(weights, count) {
  const best = [];
  for (let index = 0; index < (weights ? weights.length : 0); index += 1) {
    const weight = weights[index];
    if (!(weight > 0) || (best.length === count && weight <= best[count - 1].weight)) continue;
    let at = best.length;
    while (at > 0 && best[at - 1].weight < weight) at -= 1;
    best.splice(at, 0, { index, weight });
    if (best.length > count) best.pop();
  }
  return best;
}

/** The effective number of keys: e to the entropy. */
export function spreadOf(weights) {
  let entropy = 0;
  for (const weight of weights) if (weight > 0) entropy -= weight * Math.log(weight);
  const count = Math.exp(entropy);
  return count < 10 ? count.toFixed(1) : String(Math.round(count));
}
