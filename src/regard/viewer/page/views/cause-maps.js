// Do the maps matter: what a layer's map marks is removed, or kept alone, and compared with random maps.

import { h } from "../dom.js";
import { againstText } from "../causes.js";
import { askedSection } from "./cause-heat.js";

/** The faithfulness of every layer’s map. */
export function mapSection({ scene, causes }) {
  const line = (map) => h("tr", { class: map.matters ? "matters" : "" },
    h("th", { scope: "row" }, map.site === null || map.site === undefined ? map.name : scene.sites[map.site].label),
    h("td", {}, againstText(map.comprehensiveness)), h("td", {}, againstText(map.sufficiency)),
    h("td", {}, map.matters ? "matters" : "no better than random"));
  const show = (found) => [
    h("p", { class: "quiet" }, `${found.measured}: ${found.value.toFixed(3)}; shares of ${found.shares.map((share) => `${Math.round(100 * share)} %`).join(", ")} of the inputs; ${found.draws} random maps. Between the two numbers in brackets lie 95 % of them.`),
    h("div", { class: "scrolls", tabindex: "0", role: "region", "aria-label": "Faithfulness of each layer’s map" }, h("table", { class: "plain-table", data: { testid: "faithfulness" } },
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "map of"), h("th", { scope: "col", title: "how far the answer falls without the marked inputs: higher is better" }, "comprehensiveness ↑"), h("th", { scope: "col", title: "how far the answer falls with only the marked inputs: lower is better" }, "sufficiency ↓"), h("th", { scope: "col" }, ""))),
      h("tbody", {}, found.maps.map(line)))),
  ];
  const section = askedSection({
    title: "Do the maps matter?", testid: "maps", busy: "comparing every map with random ones …", button: "Judge every map",
    words: "The inputs that a layer’s map marks are removed (comprehensiveness: the answer should fall far) or kept alone (sufficiency: it should not), and compared with maps drawn at random.",
    ask: () => causes.ask("faithfulness"), found: () => causes.found("faithfulness"), show,
  });
  return {
    ...section,
    table() {
      const judged = causes.found("faithfulness");
      return judged ? { head: ["map", "comprehensiveness", "random low", "random high", "sufficiency", "random low", "random high", "matters"], rows: judged.maps.map((map) => [map.name, map.comprehensiveness.value, map.comprehensiveness.low, map.comprehensiveness.high, map.sufficiency.value, map.sufficiency.low, map.sufficiency.high, map.matters]) } : null;
    },
  };
}
