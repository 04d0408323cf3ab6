// The answer of a classifier, beside the title: its label and probability.

import { h, fill } from "./dom.js";

/** `{element, update(state)}`; for the shown variant. Hidden for models that do not classify. */
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
