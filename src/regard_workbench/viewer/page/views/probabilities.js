// The probability of each generated token as a row of bars, which select a step; and the shares of weight.

import { h } from "../dom.js";
import { tokenText } from "../formatting.js";

/** Formatted shares. */
export function percent(share) {
  const value = 100 * share;
  return `${value >= 10 ? value.toFixed(0) : value >= 1 ? value.toFixed(1) : value.toPrecision(1)} %`;
}

/** `{element, choose(index)}`; `onGo(index)`. */
export function createChances(steps, onGo) {
  const bars = steps.map(({ token, probability }, index) => {
    const title = `${tokenText(token, 30)} · ${percent(probability)}`;
    const bar = h("span", { style: { height: `${Math.max(3, 100 * probability)}%` } });
    const data = { testid: `step-${index}` };
    return h(
      "button",
      { type: "button", class: "chance", tabindex: -1, title, data, on: { click: () => onGo(index) } },
      bar,
    );
  });
  const words = h("span", { class: "chances-words", "aria-hidden": "true" }, "probability of each token");
  return {
    element: h(
      "div",
      { class: "chances", role: "group", "aria-label": "Probability of each generated token" },
      bars,
      words,
    ),
    choose: (chosen) => bars.forEach((bar, index) => bar.classList.toggle("here", index === chosen)),
  };
}

/** The shares of weight on the prompt and on generated tokens, as a bar and as text. */
export function sharesOf(weights, prompt, begins) {
  let early = 0;
  let late = 0;
  weights.forEach((weight, index) => (index < prompt ? (early += weight) : (late += weight)));
  const whole = early + late || 1;
  const part = (name, value) =>
    h("span", { class: `share ${name}`, style: { flexGrow: String(Math.max(0.001, value / whole)) } });
  const [given, written] = [early, late].map((value) => `${Math.round((100 * value) / whole)} %`);
  const cache = `cache of ${weights.length} ${weights.length === 1 ? "key" : "keys"}`;
  return [
    h("span", { class: "share-bar", "aria-hidden": "true" }, part("early", early), part("late", late)),
    h("span", {}, `${given} of the weight on the ${begins}, ${written} on what it wrote itself (${cache})`),
  ];
}
