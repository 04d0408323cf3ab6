// Do the maps matter: what a layer's map marks is removed, or kept alone, and compared with random maps.

import { h } from "../dom.js";
import { FAITHFULNESS, againstText, pText } from "../causes.js";
import { askedSection } from "./cause-heat.js";

/** The faithfulness of every layer’s map. */
export function mapSection({ scene, causes }) {
  const line = (map) => h("tr", { class: map.matters ? "matters" : "" },
    h("th", { scope: "row" }, map.site === null || map.site === undefined ? map.name : scene.sites[map.site].label),
    h("td", {}, againstText(map.comprehensiveness)), h("td", {}, againstText(map.sufficiency)),
    h("td", {}, pText(map.p_holm)), h("td", {}, map.matters ? "matters" : "not shown to matter"));
  const show = (found) => [
    h("p", { class: "quiet" }, `${found.measured}: ${found.value.toFixed(3)}; shares of ${found.shares.map((share) => `${Math.round(100 * share)} %`).join(", ")} of the inputs; ${found.draws} random maps. Between the two numbers in brackets lie 95 % of them; p is the share of them that are as good. A map matters if its p of both, the share of random maps that are as good in both at once, ${found.maps.length > 1 ? `corrected for ${found.maps.length} maps by Holm’s procedure, ` : ""}is at most 0.05. A larger one does not show that a map is as good as random.`),
    h("div", { class: "scrolls", tabindex: "0", role: "region", "aria-label": "Faithfulness of each layer’s map" }, h("table", { class: "plain-table", data: { testid: "faithfulness" } },
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "map of"), h("th", { scope: "col", title: "how far the answer falls without the marked inputs: higher is better" }, "comprehensiveness ↑"), h("th", { scope: "col", title: "how far the answer falls with only the marked inputs: lower is better" }, "sufficiency ↓"), h("th", { scope: "col", title: "the share of random maps that are as good by the worse of the two ranks, corrected for the number of maps by Holm’s procedure" }, "p of both"), h("th", { scope: "col" }, ""))),
      h("tbody", {}, found.maps.map(line)))),
  ];
  const section = askedSection({
    title: "Do the maps matter?", testid: "maps", busy: "comparing every map with random ones …", button: "Judge every map",
    words: "The inputs that a layer’s map marks are removed (comprehensiveness: the answer should fall far) or kept alone (sufficiency: it should not), and compared with maps drawn at random.",
    ask: () => causes.ask(FAITHFULNESS), found: () => causes.found(FAITHFULNESS), show,
  });
  return {
    ...section,
    table() {
      const judged = causes.found(FAITHFULNESS);
      return judged ? { head: ["map", "comprehensiveness", "random low", "random high", "p", "sufficiency", "random low", "random high", "p", "p of both (Holm)", "matters"], rows: judged.maps.map((map) => [map.name, ...numbersOf(map.comprehensiveness), ...numbersOf(map.sufficiency), map.p_holm, map.matters]) } : null;
    },
  };
}

function numbersOf({ value, low, high, p }) {
  return [value, low, high, p];
}
