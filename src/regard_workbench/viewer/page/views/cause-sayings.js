// What each layer would say (the logit lens), and what each head wrote into the answer.

import { h } from "../dom.js";
import { headText, tokenText } from "../formatting.js";
import { barList } from "./components.js";
import { askedSection, barCss, heatTable, signed } from "./cause-heat.js";
import { siteLabel } from "./cause-patches.js";

const TOLD = 3; // answers of a layer
const LISTED = 10;

/** For each layer the most likely answers, as if the model stopped there. */
export function lensSection({ scene, palette, causes }) {
  const show = (result) => {
    const positions = result.texts[0].length;
    const place = causes.place();
    const at = place === null || place >= positions ? positions - 1 : place;
    const names = result.names.map((name, row) => (name === "embedding" ? "before any layer" : `after ${siteLabel(scene, result, row)}`));
    const one = (row, position, rank) => {
      const [text, share] = [result.texts[row][position][rank], result.probabilities[row][position][rank]];
      return { text: `${tokenText(text, 14)} ${Math.round(100 * share)} %`, title: told(result, row, position), background: palette.css(share), color: palette.ink(share) };
    };
    const many = Math.min(TOLD, result.texts[0][0].length);
    const best = heatTable({
      label: "Most likely answers after each layer", columns: ["most likely", "second", "third"].slice(0, many), always: true,
      rows: names.map((name) => [name, Array.from({ length: many }, (_, rank) => rank)]), cell: (rank, row) => one(row, at, rank),
    });
    if (positions === 1) return best;
    const columns = Array.from({ length: positions }, (_, position) => tokenText((result.tokens || [])[position] ?? String(position), 14));
    const every = heatTable({
      label: "The most likely answer after each layer at every position", columns, turned: true, always: true,
      rows: names.map((name) => [name, columns.map((_, position) => position)]),
      cell: (position, row) => ({ ...one(row, position, 0), text: tokenText(result.texts[row][position][0], 8) }),
    });
    requestAnimationFrame(() => {
      every.scrollLeft = (every.scrollWidth * (at + 1)) / positions - every.clientWidth; // the answer's column is in view
    });
    return [best, h("h3", {}, "Most likely at every position"), every];
  };
  return askedSection({
    title: "What would each layer say?", testid: "lens", busy: "reading the rows after each layer …", button: "Read every layer",
    words: "The rows after each layer are read by the rest of the model (final norm, vocabulary head), as if it stopped there. The stronger the colour, the more likely.",
    ask: () => causes.ask({ by: "lens" }), found: () => causes.found({ by: "lens" }), show,
  });
}

function told(result, row, position) {
  return result.texts[row][position].map((text, rank) => `“${tokenText(text, 20)}” ${(100 * result.probabilities[row][position][rank]).toFixed(1)} %`).join("\n");
}

/** How much each head wrote into the answer’s logit. */
export function contributionSection({ scene, store, palette, causes }) {
  const show = (result) => {
    const shown = result.heads.map((row, index) => index).filter((index) => result.heads[index].some((value) => value)); // an encoder writes into no answer itself
    const rows = shown.map((index) => [siteLabel(scene, result, index), result.heads[index]]);
    const parts = partsOf(scene, result);
    const largest = Math.max(...parts.map((part) => Math.abs(part.value)), 1e-9);
    const cell = (value, row, head) => value === null ? null : {
      text: signed(value.toFixed(2)), background: palette.effectCss(value / largest), color: palette.effectInk(value / largest),
      title: [`${rows[row][0]}, head ${head} wrote ${signed(value.toFixed(3))}`, ...(result.says[shown[row]][head] || []).map(([text, amount]) => `“${tokenText(text, 20)}” ${signed(amount.toFixed(2))}`)].join("\n"),
      onPick: () => open(result.sites[shown[row]], head),
    };
    const heat = heatTable({ label: "What each head wrote", unit: "head", columns: Array.from({ length: Math.max(...rows.map(([, row]) => row.length)) }, (_, head) => `${head}`), rows, cell });
    const list = barList({ title: "Largest parts", testid: "parts", css: (value) => barCss(palette, value / largest) });
    parts.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
    list.show(parts.slice(0, LISTED).map((part) => ({ text: part.name, weight: part.value, number: signed(part.value.toFixed(2)), ...(part.site === null ? {} : { onPick: () => open(part.site, part.head) }) })), "what the part adds to the logit");
    return [
      h("p", { class: "said" }, `${result.measured}: ${sumText(result)}${result.unfrozen.length ? `; not held as it was: ${result.unfrozen.join(", ")}` : ""}`),
      h("div", { class: "cause-pair" }, heat, list.element),
    ];
  };
  const open = (site, head) => site !== null && site !== undefined && store.set({ site, head, row: null, key: null, view: "matrix" });
  const section = askedSection({
    title: "What did each head write?", testid: "contributions", busy: "splitting the answer’s logit into its parts …", button: "Split the answer",
    words: "The logit of the answer is the sum of what every head, every other part of a layer and the embedding wrote into it, with the scale of each norm held as it was.",
    ask: () => causes.ask({ by: "contributions" }), found: () => causes.found({ by: "contributions" }), show,
  });
  return {
    ...section,
    table() {
      const result = causes.found({ by: "contributions" });
      return result ? { head: ["part", "logit"], rows: partsOf(scene, result).map((part) => [part.name, part.value]) } : null;
    },
  };
}

const ROUNDING = 0.01; // the share of a logit up to which a gap is rounding

/** How the parts add up: to the logit up to rounding, or not. */
function sumText({ logit, bias, gap }) {
  const whole = signed(logit.toFixed(3));
  if (Math.abs(gap) > ROUNDING * Math.max(1, Math.abs(logit))) return `${whole}. The parts and the bias do not add up to it: ${signed(gap.toPrecision(2))} is missing, since this model passes on what heads write by more than sums`;
  return `${whole} = all parts + bias ${signed(bias.toFixed(3))}, up to ${Math.abs(gap).toExponential(0).replace("e-", "e−")} of rounding`;
}

function partsOf(scene, result) {
  const heads = result.heads.flatMap((row, index) => row.map((value, head) => ({ value, head, site: result.sites[index] ?? null, name: result.sites[index] === null ? `${result.names[index]} head ${head}` : headText(scene, result.sites[index], head) })));
  const others = Object.entries(result.others).map(([name, value]) => ({ value, site: null, head: null, name: otherName(scene, name) }));
  return [...heads.filter((part) => part.value !== null), ...others];
}

/** “model.layers.3, rest” in the page’s words. */
function otherName(scene, name) {
  const layer = name.replace(/, rest$/, "");
  const site = scene.sites.find((one) => one.name === layer || one.name.startsWith(`${layer}.`));
  return layer !== name && site ? `${site.label} · the rest` : name;
}
