// The text or the two texts of a site: one for self-attention, two for cross-attention.

import { extentOf } from "./positions.js";
import { createProfile } from "./profile.js";
import { createText, labelsOf } from "./text.js";

const PROFILED = 200; // from this length on a strip shows the whole text at once

/**
 * `row` is the query side, `key` the key side; both are the same in self-attention (`self`). A side is `{text, labels, strip}`.
 * `onEnter(side, index)` and `onPick(side, index)` name the side as "row" or "key".
 */
export function createSides({ scene, variant, site, palette, onEnter, onPick }) {
  const { queries, keys } = extentOf(site);
  const self = !site.cross && site.rows === site.columns;
  const whole = Math.max(queries, keys, self ? (scene.tokens[site.rows] || []).length : 0);

  function made(side, kind, count, title) {
    const labels = labelsOf(scene, variant, kind, count);
    const text = createText({
      title,
      kind,
      labels,
      palette,
      onEnter: (index) => onEnter(side, index),
      onPick: (index) => onPick(side, index),
    });
    const strip = count >= PROFILED ? createProfile({ count, palette, onPick: (index) => text.reveal(index) }) : null;
    return { text, labels, strip };
  }

  const row = made("row", site.rows, self ? whole : queries, self ? "" : `Queries (${site.rows})`);
  const key = self ? row : made("key", site.columns, keys, `Keys (${site.columns})`);
  const parts = self ? [row] : [key, row];

  return {
    row,
    key,
    self,
    texts: parts.map((part) => part.text.element),
    strips: parts.map((part) => part.strip && part.strip.element),
    /** The default position when nothing is selected: near the middle, a word rather than punctuation. */
    telling() {
      const middle = Math.floor(queries / 2);
      const near = Array.from({ length: queries }, (_, index) => index);
      near.sort((a, b) => Math.abs(a - middle) - Math.abs(b - middle));
      return near.find((index) => /\p{L}{3}/u.test(row.labels[index]) && !/^[[<]/.test(row.labels[index])) ?? middle;
    },
    choose(at, pinned) {
      row.text.choose(at.side === "row" ? at.index : null, pinned);
      if (!self) key.text.choose(at.side === "key" ? at.index : null, pinned);
    },
    /** Keys are tinted; queries are underlined. */
    show(given, taken, at) {
      key.text.tint(given);
      row.text.underline(taken);
      for (const part of parts) {
        if (part.strip) part.strip.show(part === key ? given : null, part === row ? taken : null, at.index);
      }
    },
    repaint() {
      for (const part of parts) part.text.repaint();
    },
    onKey: (event) => parts.some((part) => part.text.onKey(event)),
  };
}
