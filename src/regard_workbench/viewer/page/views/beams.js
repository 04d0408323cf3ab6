// The hypotheses of a beam search at one step as a small tree: the prefix a beam shares with the one above is shown faintly.

import { h, fill } from "../dom.js";
import { weightText } from "../formatting.js";
import { pieces } from "./text.js";

const SHOWN = 14; // tokens at the end of each hypothesis

/** `{element, show(beams)}`; beams: `[{tokens, score}]`, best first. */
export function createBeams() {
  const body = h("tbody");
  const table = h(
    "table",
    { class: "beams", data: { testid: "beams" } },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "score"), h("th", { scope: "col" }, "hypothesis"))),
    body,
  );
  const element = h("section", { class: "text", hidden: true }, h("h3", {}, "Beams"), table);
  return {
    element,
    show(beams) {
      element.hidden = !beams || !beams.length;
      if (!element.hidden)
        fill(
          body,
          beams.map((beam, index) => line(beam, index ? beams[index - 1] : null, index)),
        );
    },
  };
}

function line(beam, above, rank) {
  let shared = 0;
  while (above && shared < beam.tokens.length && beam.tokens[shared] === above.tokens[shared]) shared += 1;
  const from = Math.max(0, beam.tokens.length - SHOWN);
  const words = pieces(beam.tokens).map(({ text, full, joined }, index) => [
    joined || index === from ? "" : " ",
    h("span", { class: index < shared ? "beam-token shared" : "beam-token", title: full }, text),
  ]);
  return h(
    "tr",
    { data: { testid: `beam-${rank}` } },
    h("td", { class: "beam-score" }, weightText(beam.score)),
    h("td", {}, from ? "… " : "", words.slice(from)),
  );
}
