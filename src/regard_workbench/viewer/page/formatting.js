// Formatting of numbers and tokens.

const CONTROL = /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
const CLEAR = { "\n": "⏎", "\t": "⇥", "\r": "␍" };

/** A token for display: control and direction characters removed, white space made visible, never longer than `limit`. */
export function tokenText(token, limit = 40) {
  let text = String(token ?? "").slice(0, limit * 4);
  text = text.replace(CONTROL, (sign) => CLEAR[sign] || "");
  text = text.replace(/^[\u0120\u2581 ]/, "").replace(/\u010a/g, "⏎");
  if (!text) text = token === "" ? "∅" : "␣";
  const signs = Array.from(text);
  return signs.length > limit ? `${signs.slice(0, limit - 1).join("")}…` : text;
}

const coarse = { digits: null };

/** Let weights be shown with so many significant digits at most, where a page holds no more; null: with all of ours. */
export function limitDigits(digits) {
  coarse.digits = digits;
}

/** A weight with two or three significant digits, or with four where it is shown alone. */
export function weightText(weight, alone = false) {
  if (!Number.isFinite(weight)) return "not a number";
  const size = Math.abs(weight);
  if (size === 0) return "0";
  const text = coarse.digits ? (size < 0.0001 ? weight.toExponential(coarse.digits - 1) : weight.toPrecision(coarse.digits)) : size < 0.0001 ? weight.toExponential(alone ? 3 : 1) : size >= 0.1 ? weight.toFixed(alone ? 4 : 3) : weight.toPrecision(alone ? 4 : size >= 0.01 ? 3 : 2);
  return text.replace(/-/g, "−");
}

/** A difference of two weights, always with its sign. */
export function differenceText(value, alone = false) {
  return value > 0 ? `+${weightText(value, alone)}` : weightText(value, alone);
}

/** Whole numbers with thin spaces between thousands. */
export function countText(count) {
  return String(count).replace(/\B(?=(\d{3})+$)/g, "\u202f");
}

/** Sizes of a site at a call: `{queries, keys, start}`; call −1 is the last. */
export function sizeOf(site, call) {
  const calls = site.calls;
  return calls[call < 0 || call >= calls.length ? calls.length - 1 : call] || { queries: 0, keys: 0, start: 0 };
}

/** The text of query `index` of a site (a decoding step's queries begin at `start`). */
export function rowText(scene, site, call, index, limit) {
  return named(scene, site.rows, index + (sizeOf(site, call).start || 0), limit);
}

/** The text of key `index` of a site. */
export function keyText(scene, site, index, limit) {
  return named(scene, site.columns, index, limit);
}

/** The scene with the labels of one variant: another input has other labels. */
export function seenBy(scene, variant) {
  const own = scene.variants[variant] && scene.variants[variant].tokens;
  return own ? { ...scene, tokens: own } : scene;
}

/** "layer 3 · head 5", counted from 0. */
export function headText(scene, site, head) {
  const facts = scene.sites[site];
  return facts ? `${facts.label || facts.name} · head ${head}` : "";
}

function named(scene, kind, index, limit) {
  const labels = scene.tokens[kind];
  if (labels && index < labels.length) return tokenText(labels[index], limit);
  return `${SINGLE[kind] || "position"} ${index}`;
}

const SINGLE = { tokens: "token", targets: "target", slots: "slot", steps: "step", patches: "patch" };
