// Details of one head beside the overview: a larger map, its pattern and its numbers.

import { siteName } from "./availability.js";
import { createVerdict } from "./causes.js";
import { dotted, h, fill } from "./dom.js";
import { exactnessWord } from "./exactness.js";
import { headText, weightText } from "./formatting.js";
import { codesCanvas } from "./figure.js";

const MOST = 5;
const NOT_A_CAUSE = "A pattern describes the map, not what the head does; seen.circuits tests that.";

/** `{element, show({site, head}, {overview, facts})}`. */
export function createDetails(context) {
  const { scene, source, palette } = context;
  const verdict = createVerdict(context);
  const canvas = h("canvas", { class: "details-map", role: "img" });
  const name = h("h2", {});
  const path = h("p", { class: "rail-name" });
  const numbers = h("dl", { class: "facts" });
  const caveat = h("p", { class: "hint", hidden: true, data: { testid: "pattern-caveat" } }, NOT_A_CAUSE);
  const scores = h("div", { class: "scores" });
  const element = h("aside", { class: "details", "aria-label": "About this head", data: { testid: "details" } }, name, path, canvas, numbers, caveat, scores, verdict.element, h("p", { class: "hint" }, "Click a map to open it in full."));
  return {
    element,
    forget: verdict.forget,
    show({ site, head, variant, call }, { overview, facts }) {
      const about = scene.sites[site];
      if (!about || !overview) return;
      verdict.show(site);
      fill(name, headText(scene, site, head));
      fill(path, dotted(siteName(about, variant)));
      const index = overview.heads.findIndex(([s, t]) => s === site && t === head);
      canvas.hidden = index < 0;
      if (index >= 0) {
        codesCanvas(overview.of(index), overview.size, overview.size, palette.table(), canvas);
        canvas.setAttribute("aria-label", `Map of ${headText(scene, site, head)}`);
      }
      const fact = facts ? facts.of(site, head) : null;
      fill(numbers, rowsOf(about, fact, source.note({ site, head, variant, call })).map(([term, value]) => [h("dt", {}, term), h("dd", {}, value)]));
      caveat.hidden = !(fact && fact.pattern);
      fill(scores, fact ? bars(fact.scores) : null);
    },
  };
}

function rowsOf(site, fact, note) {
  const rows = [];
  if (fact) {
    rows.push(["map’s pattern", fact.pattern || "none named"]);
    if (Number.isFinite(fact.entropy)) rows.push(["entropy", `${fact.entropy.toFixed(2)} nats`]);
    if (fact.importance !== null && fact.importance !== undefined) rows.push(["importance", weightText(fact.importance)]);
  }
  rows.push(["weights", exactnessWord(site)]);
  if (note) rows.push(["kept", note]);
  return rows;
}

function bars(scores) {
  const list = Object.entries(scores || {}).filter(([, score]) => Number.isFinite(score)).sort((a, b) => b[1] - a[1]).slice(0, MOST);
  return list.map(([label, score]) =>
    h("div", { class: "score" }, h("span", { class: "score-name" }, label), h("span", { class: "score-track" }, h("span", { class: "score-bar", style: { width: `${100 * Math.min(1, Math.max(0, score))}%` } })), h("span", { class: "score-number" }, score.toFixed(2))),
  );
}
