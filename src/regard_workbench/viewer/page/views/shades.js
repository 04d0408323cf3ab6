// Weights as a few dozen shades. Neighbouring weights share one, so a text of thousands of tokens changes little between
// two updates, and each colour is computed once.

import { placeOf } from "../palette.js";

const SHADES = 40;
const known = new Map();

/** For the current theme and scale: `of(weight)` → a number, 0 for none; `look(shade, weight)` → `{css, ink}`. */
export function shadesOf(palette) {
  const scale = palette.scale();
  const name = `${palette.theme()} ${scale}`;
  if (!known.has(name)) known.set(name, []);
  const looks = known.get(name);
  return {
    of: (weight) => (weight > 0 ? Math.round(SHADES * placeOf(weight, scale)) : 0),
    look(shade, weight) {
      looks[shade] ||= { css: palette.css(weight), ink: palette.ink(weight) };
      return looks[shade];
    },
  };
}
