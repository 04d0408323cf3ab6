// The head picker at the left: shows the current layer and head, and selects another.

import { dotted, h, fill } from "./dom.js";
import { colourByFacts, factText } from "./rail-colours.js";
import { absence, siteName } from "./availability.js";
import { headText } from "./formatting.js";

const [NARROWEST, WIDEST, LETTER] = [46, 96, 6.5]; // pixels of the labels, and about of one character

/** `{element, update(state)}`; one button for each head, one line for each site. */
export function createRail({ scene, source, store, palette }) {
  const list = h("div", { class: "rail-grid", role: "grid", "aria-label": "Layers and heads" });
  const caption = h("p", { class: "rail-caption", "aria-live": "polite" });
  const legend = h("div", { class: "rail-legend" });
  const shading = h("select", { class: "rail-by", "aria-label": "Colour of the heads", data: { testid: "rail-by" }, on: { change: () => recolour() } },
    [["", "one colour"], ["pattern", "by pattern"], ["entropy", "by entropy"]].map(([value, text]) => h("option", { value }, text)));
  const element = h("aside", { class: "rail", "aria-label": "Choose a head" }, h("h2", {}, "Heads"), caption, list, shading, legend);
  const most = Math.max(1, ...scene.sites.map((site) => site.heads));
  list.style.setProperty("--across", String(Math.min(most, 16)));
  const cells = new Map();
  let current = null;
  let group = null;
  let variant = null;
  const longest = Math.max(0, ...scene.sites.map((site) => (site.label || site.name).length));
  list.style.setProperty("--label", `${Math.round(Math.min(WIDEST, Math.max(NARROWEST, LETTER * longest)))}px`);

  let facts_ = null;
  let asked = "";
  /** Facts are requested when a colour is chosen: measuring all heads takes a moment. */
  const recolour = async () => {
    const { variant: which, call } = store.get();
    const name = `${which} ${call}`;
    if (shading.value && asked !== name) {
      asked = name;
      fill(legend, "measuring the heads …");
      facts_ = await source.facts({ variant: which, call }).catch(() => null);
      if (asked !== name) return;
    }
    colourByFacts(cells, legend, shading.value, facts_, palette);
    describe(store.get());
  };
  const describe = (state) => {
    const words = facts_ && shading.value ? factText(facts_.of(state.site, state.head)) : "";
    const site = scene.sites[state.site];
    if (site) fill(caption, h("strong", {}, headText(scene, state.site, state.head)), h("span", { class: "rail-name" }, dotted(siteName(site, state.variant))), words ? h("span", { class: "rail-fact" }, words) : null);
  };
  list.append(h("div", { class: "rail-row rail-numbers", "aria-hidden": "true" }, h("span", { class: "rail-label" }), h("span", { class: "rail-heads" }, Array.from({ length: Math.min(most, 16) }, (_, head) => h("span", {}, String(head))))));
  for (const [site, facts] of scene.sites.entries()) {
    const told = (facts.label || "").startsWith(facts.group); // “decoder 0” needs no heading “decoder”
    if (facts.group && !told && facts.group !== group && scene.sites.some((other) => other.group !== facts.group)) {
      list.append(h("div", { class: "rail-group", role: "row" }, h("span", { role: "rowheader" }, facts.group)));
    }
    group = facts.group;
    const row = h("div", { class: "rail-row", role: "row" }, h("span", { class: "rail-label", role: "rowheader", title: facts.name }, facts.label || facts.name));
    const squares = h("span", { class: "rail-heads", role: "presentation" });
    for (let head = 0; head < facts.heads; head += 1) {
      const text = headText(scene, site, head);
      const cell = h("button", {
        type: "button", class: "rail-cell", role: "gridcell", tabindex: "-1", "aria-label": text, data: { testid: `rail-${site}-${head}` }, on: { click: () => store.set({ site, head }) },
      });
      cells.set(`${site} ${head}`, cell);
      squares.append(cell);
    }
    row.append(squares);
    list.append(row);
  }

  /** Another model may lack a layer or head, and a file may not store it. */
  const show = (next) => {
    if (next === variant) return;
    variant = next;
    for (const [cellName, cell] of cells) {
      const [site, head] = cellName.split(" ").map(Number);
      const why = absence(scene, variant, site, head) || (source.keeps({ variant, site, head, call: -1 }) ? "" : "not kept in this file");
      cell.classList.toggle("missing", Boolean(why));
      cell.title = why ? `${headText(scene, site, head)} (${why})` : headText(scene, site, head);
    }
  };

  return {
    element,
    update(state) {
      show(state.variant);
      const next = cells.get(`${state.site} ${state.head}`);
      if (next !== current) {
        if (current) {
          current.classList.remove("here");
          current.removeAttribute("aria-selected");
          current.tabIndex = -1;
        }
        if (next) {
          next.classList.add("here");
          next.setAttribute("aria-selected", "true");
          next.tabIndex = 0;
          if (list.contains(document.activeElement)) next.focus();
          if (element.isConnected) next.scrollIntoView({ block: "nearest", inline: "nearest" });
        }
        current = next;
      }
      describe(state);
      if (shading.value) recolour();
    },
  };
}
