// Data embedded in the page: an exported file or a notebook. A JSON text lists the parts and their offsets in one block
// of bytes. A head is stored whole ("full"), as the strongest keys of each row ("top"), or as tiles.

import { SourceError, overviewOf, readFacts, once } from "./source.js";
import { weightOf, differenceOf, differenceCode } from "./palette.js";

const DIGITS = 2; // significant ones of a weight: its code is right to three per cent

/** The source of an exported page: the JSON in #regard-data, the deflated bytes in #regard-bytes (base64). */
export function embeddedSource(page) {
  const data = JSON.parse(page.getElementById("regard-data").textContent);
  return payloadSource(data, () => inflated(page.getElementById("regard-bytes").textContent));
}

/** Bytes from base64 of a zlib stream. */
export function inflated(text) {
  const packed = Uint8Array.from(atob(text.trim()), (sign) => sign.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer().then((buffer) => new Uint8Array(buffer));
}

/** A source over a payload; `unpack()` gives a promise of its bytes. */
export function payloadSource(data, unpack) {
  const bytes = once(unpack);
  const scene = data.scene;
  const parts = new Map();
  for (const part of data.parts || []) {
    const name = nameOf(part.variant, part.site, part.head, part.call ?? 0);
    if (!parts.has(name)) parts.set(name, []);
    parts.get(name).push(part);
  }
  const lastCall = (site, call) => {
    const count = ((scene.sites[site] || {}).calls || [{}]).length;
    return call === null || call === undefined || call < 0 || call >= count ? count - 1 : call;
  };
  const found = (given, variant) => {
    const list = parts.get(nameOf(variant, given.site, given.head, lastCall(given.site, given.call)));
    return list && (list.find((part) => part.kind === "full") || list.find((part) => part.kind === "top") || list);
  };
  const needed = (given, variant = given.variant || 0) => {
    const part = found(given, variant);
    if (part && !Array.isArray(part)) return part;
    throw new SourceError("This file does not contain this head. Choose another, or export again with --sites and --heads.", 404);
  };
  const sized = (part) => {
    const size = scene.sites[part.site].calls[part.call ?? 0];
    return { queries: part.queries ?? size.queries, keys: part.keys ?? size.keys };
  };

  /** Codes of a block of weights, strongest of each `step`×`step`, into a new array. */
  const block = (all, part, step, left, top, width, height) => {
    const out = new Uint8Array(width * height);
    const { queries, keys } = sized(part);
    const lastRow = Math.min(queries, (top + height) * step);
    for (let row = top * step; row < lastRow; row += 1) {
      const line = (Math.floor(row / step) - top) * width - left;
      if (part.kind === "full") {
        const lastKey = Math.min(keys, (left + width) * step);
        for (let key = left * step; key < lastKey; key += 1) raise(out, line + Math.floor(key / step), all[part.at + row * keys + key]);
      } else {
        for (let rank = 0; rank < part.top; rank += 1) {
          const at = part.at + 3 * (row * part.top + rank);
          const pixel = Math.floor((all[at] | (all[at + 1] << 8)) / step);
          if (pixel >= left && pixel < left + width) raise(out, line + pixel, all[at + 2]);
        }
      }
    }
    return out;
  };

  /** Codes of weights, or of differences when another variant is subtracted. */
  const codes = async (given, step, left, top, width, height) => {
    const all = await bytes();
    const first = block(all, needed(given), step, left, top, width, height);
    if (given.minus === null || given.minus === undefined) return first;
    const second = block(all, needed(given, given.minus), step, left, top, width, height);
    return first.map((code, index) => differenceCode(weightOf(code) - weightOf(second[index])));
  };
  const weights = async (given, ...args) => {
    const difference = given.minus !== null && given.minus !== undefined;
    const valueOf = difference ? differenceOf : weightOf;
    return Float32Array.from(await codes(given, ...args), (code) => Number(valueOf(code).toPrecision(DIGITS)));
  };

  return {
    embedded: true,
    digits: DIGITS,
    scene: () => Promise.resolve(scene),
    keeps: (given) => Boolean(found(given, given.variant || 0)),
    note(given) {
      const part = found(given, given.variant || 0);
      if (!part) return "not kept in this file";
      if (part.kind === "top") return `only the strongest ${part.top} of each row stored, to 8 bits: two digits`;
      return "stored to 8 bits: two digits";
    },
    async overview(given) {
      const header = chosen(data.overview, given);
      if (!header) throw new SourceError("This file contains no overview.", 404);
      const all = await bytes();
      return overviewOf(header, all.subarray(header.at, header.at + header.heads.length * header.size * header.size));
    },
    glimpse: () => null,
    async facts(given) {
      return readFacts(chosen(data.facts, given) || {});
    },
    async font(bold) {
      const header = (data.fonts || [])[Number(bold)];
      if (!header) throw new SourceError("This file was exported without the fonts that a PDF needs. Save SVG, or export it again.", 404);
      const all = await bytes();
      return { ...header, file: all.subarray(header.at, header.at + header.size) };
    },
    async tile(given) {
      const list = found(given, given.variant || 0);
      if (Array.isArray(list)) return keptTile(await bytes(), list, given);
      const { queries, keys } = sized(needed(given));
      const step = 2 ** given.level;
      const side = (scene.limits || {}).tile || 256;
      const width = Math.min(side, Math.ceil(keys / step) - given.x * side);
      const height = Math.min(side, Math.ceil(queries / step) - given.y * side);
      if (width <= 0 || height <= 0) throw new SourceError("There is no data for this request.", 404);
      return { width, height, sampled: false, codes: await codes(given, step, given.x * side, given.y * side, width, height) };
    },
    async row(given) {
      return weights(given, 1, 0, given.row, sized(needed(given)).keys, 1);
    },
    async column(given) {
      return weights(given, 1, given.key, 0, 1, sized(needed(given)).queries);
    },
    async top(given) {
      const { queries, keys } = sized(needed(given));
      const answer = { keys: [], weights: [] };
      for (let row = 0; row < queries; row += 1) {
        const line = await weights(given, 1, 0, row, keys, 1);
        const order = Array.from(line.keys()).sort((a, b) => line[b] - line[a]).slice(0, given.top || 8);
        answer.keys.push(order);
        answer.weights.push(order.map((key) => line[key]));
      }
      return answer;
    },
    async strongest(given) {
      const heads = scene.sites[given.site].heads;
      const tops = await Promise.all(Array.from({ length: heads }, (_, head) => (found({ ...given, head }, given.variant || 0) ? this.top({ ...given, head }) : null)));
      const queries = Math.max(0, ...tops.map((one) => (one ? one.keys.length : 0)));
      const at = (list, row, rank, none) => (list && list[row] && rank < list[row].length ? list[row][rank] : none);
      return { heads, queries, top: given.top, keyOf: (head, row, rank) => at(tops[head] && tops[head].keys, row, rank, -1), weightOf: (head, row, rank) => at(tops[head] && tops[head].weights, row, rank, 0) };
    },
    through: (kind) => Promise.reject(new SourceError(`An exported page has no ${kind}. Open the model with \`regard view\` to see it.`, 404)),
  };
}

function raise(out, index, code) {
  if (code > out[index]) out[index] = code;
}

function nameOf(variant, site, head, call) {
  return `${variant || 0} ${site} ${head} ${call}`;
}

/** One entry of a list that belongs to a variant and a call; a single entry, or one without a variant, is used for all. */
function chosen(list, { variant = 0, call = -1 }) {
  if (!list) return null;
  if (!Array.isArray(list) || (list.length && list[0].heads && list[0].site !== undefined)) return list;
  const mine = list.filter((entry) => (entry.variant || 0) === variant);
  return mine.find((entry) => (entry.call ?? -1) === call) || mine[0] || null;
}

function keptTile(all, list, { level, x, y }) {
  const part = list.find((entry) => entry.kind === "tile" && entry.level === level && entry.x === x && entry.y === y);
  if (!part) throw new SourceError("This file contains only a part of this head. Zoom out.", 404);
  return { width: part.width, height: part.height, sampled: Boolean(part.sampled), codes: all.subarray(part.at, part.at + part.width * part.height) };
}
