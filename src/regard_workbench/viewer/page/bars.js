// The toolbar at the top right, and the footer with legend and status.

import { h, fill } from "./dom.js";
import { restingCall, stepped } from "./state.js";
import { exactnessText, exactnessTitle } from "./exactness.js";
import { countText, sizeOf } from "./formatting.js";

/** Variants, the step of a generation, theme, saving, help. */
export function createTools({ scene, store }, { saving, help }) {
  const choice = h("select", { "aria-label": "Model or input shown", data: { testid: "variant" }, on: { change: () => store.set({ variant: Number(choice.value) }) } },
    scene.variants.map((variant, index) => h("option", { value: index }, variant.name)));
  const less = h("select", { "aria-label": "Model or input subtracted", data: { testid: "minus" }, on: { change: () => store.set({ minus: less.value === "" ? null : Number(less.value) }) } },
    h("option", { value: "" }, "alone"), scene.variants.map((variant, index) => h("option", { value: index }, `minus ${variant.name}`)));
  const variants = h("span", { class: "pair" }, choice, less);
  let open = null;
  const move = (by) => {
    const state = store.get();
    store.set({ call: stepped(scene.sites[state.site].calls, state.call, by, open) });
  };
  const stepLabel = h("output", { class: "steps-place", "aria-label": "Step", data: { testid: "call" } });
  const steps = h("span", { class: "pair", title: "step of the generation ([ and ])" },
    h("button", { type: "button", class: "plain", "aria-label": "Step before", data: { testid: "call-prev" }, on: { click: () => move(-1) } }, "‹"),
    stepLabel,
    h("button", { type: "button", class: "plain", "aria-label": "Step after", data: { testid: "call-next" }, on: { click: () => move(1) } }, "›"));
  const theme = h("button", { type: "button", class: "plain", data: { testid: "theme" }, on: { click: () => store.set({ theme: effective() === "dark" ? "light" : "dark" }) } });
  const effective = () => theme.closest("[data-theme]")?.dataset.theme || "light";
  const element = h("div", { class: "tools" }, variants, steps, theme, saving.element,
    h("button", { type: "button", class: "plain", "aria-label": "Help: keys", title: "Keys (?)", data: { testid: "help-open" }, on: { click: () => help.toggle() } }, "?"));
  return {
    element,
    update(state, view) {
      variants.hidden = scene.variants.length < 2 || Boolean(view && view.variants === false);
      choice.value = String(state.variant);
      less.value = state.minus === null ? "" : String(state.minus);
      const site = scene.sites[state.site];
      open = view;
      steps.hidden = !site || site.calls.length < 2 || Boolean(view && view.calls === false);
      const count = site ? site.calls.length : 0;
      const call = site && state.call < 0 ? restingCall(site.calls, view) : state.call;
      fill(stepLabel, call === count ? `all ${count} steps` : `step ${call} of 0–${count - 1}`);
      const dark = effective() === "dark";
      fill(theme, dark ? "Light" : "Dark");
      theme.setAttribute("title", `${dark ? "Light" : "Dark"} theme (t)`);
    },
  };
}

/** The legend, the choice of scale, and how exact the weights are. */
export function createFooter({ scene, source, store, palette }) {
  const holder = h("div", { class: "legend-holder" });
  const scales = h("div", { class: "scales", role: "radiogroup", "aria-label": "Scale" });
  for (const name of ["log", "root", "linear"]) {
    scales.append(h("button", { type: "button", role: "radio", class: "scale", data: { scale: name, testid: `scale-${name}` }, on: { click: () => store.set({ scale: name }) } }, name));
  }
  const what = h("p", { class: "what", data: { testid: "what" } });
  const element = h("footer", { class: "foot" }, holder, scales, what);
  let drawn = "";
  return {
    element,
    update(state, instance) {
      const difference = instance && instance.difference ? instance.difference() : state.minus !== null;
      const own = instance && instance.legend ? instance.legend() : null;
      const wanted = own ? null : `${palette.scale()} ${palette.theme()} ${difference}`;
      if (own) fill(holder, own);
      else if (wanted !== drawn) {
        fill(holder, palette.legend(difference));
        for (const button of scales.children) button.setAttribute("aria-checked", String(button.dataset.scale === palette.scale()));
      }
      drawn = wanted;
      scales.hidden = difference || Boolean(own);
      fill(what, about(scene, source, state, instance).map((part) => (typeof part === "string" ? h("span", {}, part) : part)));
    },
  };
}

function about(scene, source, state, instance) {
  const site = scene.sites[state.site];
  if (!site) return [];
  if (instance && instance.what) {
    const words = instance.what();
    if (words) return [].concat(words);
  }
  const size = sizeOf(site, state.call);
  const note = source.note(state);
  return [
    h("span", { class: "how", title: exactnessTitle(site) }, exactnessText(site, note)),
    `${countText(size.queries)} × ${countText(size.keys)}`,
    site.kind ? h("span", { class: "kind" }, site.kind.replace(/_/g, " ")) : null,
  ].filter(Boolean);
}
