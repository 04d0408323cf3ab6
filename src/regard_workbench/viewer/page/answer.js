// The model's answer with its probability, beside the title and below saved figures.

import { h, fill } from "./dom.js";
import { Drawing } from "./drawing.js";
import { linesOf } from "./marks.js";

const STYLE = { size: 11 };
const [EDGE, LINE] = [12, 15];

/** `{element, update(state)}`; for the shown variant. Hidden for models without a known answer. */
export function createAnswer(scene) {
  const words = h("bdi", { data: { testid: "answer" } });
  const element = h("p", { class: "answer", hidden: true }, h("span", { class: "answer-label" }, "answer"), " ", words);
  return {
    element,
    update(state) {
      const { answer } = scene.variants[state.variant] || {};
      element.hidden = !answer;
      if (!answer) return;
      fill(words, answer.text);
      element.title = [answer.text, ...(answer.others || []).map(([label, share]) => `${label} ${(100 * share).toFixed(1)} %`)].join("\n");
    },
  };
}

/** " · positive 98.2 %" for a caption; empty where a variant has no answer. */
export function answered(scene, variant) {
  const { answer } = scene.variants[variant] || {};
  return answer ? ` · ${answer.text}` : "";
}

/** A drawing with the answer of the shown variant below it; the drawing itself where there is none. */
export function answeredDrawing(drawing, scene, variant, fill) {
  const { answer } = scene.variants[variant] || {};
  if (!answer) return drawing;
  const lines = linesOf(`answer  ${answer.text}`, Math.max(drawing.width, 320) - 2 * EDGE, STYLE);
  const made = new Drawing(drawing.width, drawing.height + LINE * lines.length + EDGE / 2, drawing.background).add(drawing, 0, 0);
  lines.forEach((line, index) => made.text(EDGE, drawing.height + LINE * (index + 0.6), line, { ...STYLE, fill }));
  return made;
}
