// A strip that shows the weights over a whole long text at once: weights of the selected token go up from the middle,
// weights on it go down. A click scrolls the text there.

import { h } from "../dom.js";
import { placeOf } from "../palette.js";
import { shadesOf } from "./shades.js";

const WIDE = 1200;
const HIGH = 56;

/** `{element, show(given, taken, at)}`. */
export function createProfile({ count, palette, onPick }) {
  const canvas = h("canvas", {
    class: "profile",
    width: WIDE,
    height: HIGH,
    role: "img",
    "aria-label": "Weights over the whole text",
    data: { testid: "profile" },
  });
  canvas.addEventListener("click", (event) => {
    const box = canvas.getBoundingClientRect();
    onPick(Math.min(count - 1, Math.floor((count * (event.clientX - box.left)) / box.width)));
  });
  const paint = canvas.getContext("2d");
  const seen = {};

  function bars(weights, sign) {
    if (!weights) return;
    const peaks = new Float32Array(WIDE);
    for (let index = 0; index < weights.length; index += 1) {
      const first = Math.floor((WIDE * index) / count);
      const last = Math.max(first + 1, Math.floor((WIDE * (index + 1)) / count));
      for (let x = first; x < last; x += 1) if (weights[index] > peaks[x]) peaks[x] = weights[index];
    }
    const { of, look } = shadesOf(palette);
    const scale = palette.scale();
    for (let x = 0; x < WIDE; x += 1) {
      const shade = of(peaks[x]);
      if (!shade) continue;
      const tall = (HIGH / 2 - 2) * placeOf(peaks[x], scale);
      paint.fillStyle = look(shade, peaks[x]).css;
      paint.fillRect(x, sign > 0 ? HIGH / 2 - tall : HIGH / 2, 1, tall);
    }
  }

  return {
    element: canvas,
    show(given, taken, at) {
      // Reading computed styles forces a layout of the whole text, so it is done once per theme.
      if (seen.theme !== palette.theme()) {
        const looks = getComputedStyle(canvas);
        Object.assign(seen, { theme: palette.theme(), line: looks.borderBottomColor, mark: looks.color });
      }
      paint.clearRect(0, 0, WIDE, HIGH);
      paint.fillStyle = seen.line;
      paint.fillRect(0, HIGH / 2 - 0.5, WIDE, 1);
      bars(given, 1);
      bars(taken, -1);
      paint.fillStyle = seen.mark;
      paint.fillRect(Math.floor((WIDE * (at + 0.5)) / count) - 1, 0, 2, HIGH);
    },
  };
}
