// Two rows of words, joined by ribbons as wide as the weight between them.

import { fill, h, s } from "../dom.js";
import { textWidth } from "../marks.js";
import { tokenText } from "../formatting.js";

const SIZE = 17;
const GAP = 22;
const TALL = 230;
const BAND = 18; // the width of a ribbon of weight 1
const FAINTEST = 0.05;
const TOP = 24;

/** `show({weights, rows, columns}, links)`; `onWord(side, index | null)` follows the pointer and the focus. */
export function createRibbons({ palette, onWord }) {
  const element = h("div", { class: "ribbons", data: { testid: "ribbons" } });
  let parts = [];

  function show({ weights, rows, columns }, links) {
    const upper = placed(columns);
    const lower = placed(rows);
    const width = Math.max(upper.width, lower.width);
    // The shorter sentence is spread to the width of the longer one, so that ribbons are as straight as possible.
    spread(upper, width);
    spread(lower, width);
    const linked = new Set(links.map(String));
    parts = [];
    const paths = [];
    weights.forEach((line, row) =>
      line.forEach((weight, column) => {
        if (weight < FAINTEST) return;
        const path = s("path", {
          d: ribbon(upper.at[column], TOP + 10, lower.at[row], TOP + TALL - 20, Math.max(1, BAND * weight)),
          fill: palette.css(weight),
          class: linked.has(String([row, column])) ? "ribbon linked" : "ribbon",
          data: { testid: `pair-${row}-${column}` },
        });
        parts.push({ path, row, column });
        paths.push([weight, path]);
      }),
    );
    // Strong ones last, above the faint ones.
    paths.sort((a, b) => a[0] - b[0]);
    const words = (side, labels, place, y) =>
      labels.map((label, index) =>
        s(
          "text",
          {
            x: place.at[index],
            y,
            class: "ribbon-word",
            "text-anchor": "middle",
            "font-size": SIZE,
            tabindex: 0,
            data: { testid: `${side === "row" ? "target" : "source"}-${index}` },
            on: {
              pointerenter: () => focus(side, index),
              pointerleave: () => focus(side, null),
              focus: () => focus(side, index),
              blur: () => focus(side, null),
            },
          },
          tokenText(label, 24),
        ),
      );
    const picture = s(
      "svg",
      {
        width: width + 2 * GAP,
        height: TOP + TALL + 20,
        role: "group",
        "aria-label": "Source words above, target words below",
      },
      paths.map(([, path]) => path),
      words("column", columns, upper, TOP),
      words("row", rows, lower, TOP + TALL),
    );
    fill(element, picture);
  }

  function focus(side, index) {
    for (const part of parts) part.path.classList.toggle("dim", index !== null && part[side] !== index);
    onWord(side, index);
  }

  return { element, show };
}

function placed(labels) {
  let x = GAP;
  const at = labels.map((label) => {
    const wide = textWidth(tokenText(label, 24), { size: SIZE + 1 });
    const middle = x + wide / 2;
    x += wide + GAP;
    return middle;
  });
  return { at, width: x };
}

function spread(place, width) {
  const last = place.at.length - 1;
  if (last < 1) return;
  const extra = (width - place.width) / last;
  place.at = place.at.map((x, index) => x + extra * index);
}

/** A band from top to bottom with vertical ends. */
function ribbon(x1, y1, x2, y2, wide) {
  const middle = (y1 + y2) / 2;
  const half = wide / 2;
  const n = (value) => Math.round(10 * value) / 10;
  return `M${n(x1 - half)} ${y1} C${n(x1 - half)} ${middle} ${n(x2 - half)} ${middle} ${n(x2 - half)} ${y2} L${n(x2 + half)} ${y2} C${n(x2 + half)} ${middle} ${n(x1 + half)} ${middle} ${n(x1 + half)} ${y1} Z`;
}
