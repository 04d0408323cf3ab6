// What a classifier answered, beside the title: its label and how sure it is.

import { h, fill } from "./dom.js";

/** `{element, update(state)}`; of the variant that is shown. Models that classify nothing have none. */
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

/** " · positive 98.2 %" for a caption; nothing where a variant has no answer. */
export function answered(scene, variant) {
  const { answer } = scene.variants[variant] || {};
  return answer ? ` · ${answer.text}` : "";
}
