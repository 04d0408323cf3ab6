// A text as a run of tokens that wraps like a paragraph: each may be tinted by one list of weights and underlined by
// another. Thousands of tokens stay quick, because only those whose shade changes are touched and far ones are not laid out.

import { h } from "../dom.js";
import { tokenText } from "../formatting.js";
import { shadesOf } from "./shades.js";

const RUN = 100; // tokens in one numbered run of a long text
const LONG = 400;
const BRIEF = 70;
const BEGINS_WORD = /^[\u0120\u2581 ]/;
const SINGLE = { tokens: "token", targets: "target", read: "read", slots: "slot", steps: "step", patches: "patch", nodes: "node" };

/** Labels for `count` positions of a variant; numbers where there are none. */
export function labelsOf(scene, variant, kind, count) {
  const own = (scene.variants[variant] || {}).tokens || {};
  const labels = own[kind] || scene.tokens[kind] || [];
  return Array.from({ length: count }, (_, index) => labels[index] ?? `${SINGLE[kind] || "position"} ${index}`);
}

/** The words of each token and whether it continues the word before it. */
export function pieces(labels) {
  // A vocabulary that marks word beginnings marks many; a single leading space does not count.
  const marked = labels.filter((label) => BEGINS_WORD.test(label)).length > labels.length / 12;
  return labels.map((label, index) => {
    const continued = label.startsWith("##") && label.length > 2;
    const joined =
      index > 0 && (continued || (marked && !BEGINS_WORD.test(label) && /^[\p{L}\p{N}'’.,;:!?)]/u.test(label)));
    return {
      text: tokenText(continued ? label.slice(2) : label, 24),
      full: tokenText(label, 400),
      joined,
      breaks: /[\n\u010a]/.test(label),
    };
  });
}

/** `onEnter(index | null)` follows pointer and focus, `onPick(index)` a click, enter or the space bar. */
export function createText({ title, kind, labels, palette, onEnter = () => {}, onPick = () => {} }) {
  const single = SINGLE[kind] || "token";
  const tokens = [];
  const indexOf = new Map();
  const body = h("div", { class: "text-body", role: "listbox", "aria-label": title || "Tokens" });
  let chosen = null;
  let stop = 0;

  build();
  body.addEventListener("pointerover", (event) => {
    const index = indexOf.get(event.target);
    if (index !== undefined) onEnter(index);
  });
  body.addEventListener("pointerleave", () => onEnter(null));
  body.addEventListener("focusin", (event) => {
    const index = indexOf.get(event.target);
    if (index === undefined) return;
    rove(index);
    if (event.target.matches(":focus-visible")) onEnter(index);
  });
  body.addEventListener("click", (event) => {
    const index = indexOf.get(event.target);
    if (index !== undefined) onPick(index);
  });

  function build() {
    const long = labels.length > LONG;
    let run = body;
    pieces(labels).forEach(({ text, full, joined, breaks }, index, all) => {
      if (long && index % RUN === 0) {
        run = h("div", { class: "text-run" });
        body.append(h("span", { class: "text-number", "aria-hidden": "true" }, String(index)), run);
      }
      const token = h(
        "span",
        {
          class: `token${joined ? " joined" : ""}${all[index + 1] && all[index + 1].joined ? " goes-on" : ""}`,
          role: "option",
          tabindex: index ? -1 : 0,
          title: full === text ? null : full,
          data: { testid: `${single}-${index}` },
        },
        text,
      );
      tokens.push(token);
      indexOf.set(token, index);
      // A break opportunity between words, none inside them.
      if (index && !joined) run.append(" ");
      run.append(token);
      if (breaks) run.append(h("br"));
    });
    body.classList.toggle("long", long);
    body.classList.toggle("brief", labels.length <= BRIEF);
  }

  function rove(index) {
    tokens[stop].tabIndex = -1;
    tokens[index].tabIndex = 0;
    stop = index;
  }

  /** The token in the line above or below that is nearest to this one. */
  function vertical(index, by) {
    const from = tokens[index].getBoundingClientRect();
    let best = index;
    for (let at = index + by; at >= 0 && at < tokens.length; at += by) {
      const box = tokens[at].getBoundingClientRect();
      const lines = Math.abs(box.top - from.top) / Math.max(1, from.height);
      if (lines < 0.5) continue;
      if (best !== index && Math.abs(box.top - tokens[best].getBoundingClientRect().top) > from.height / 2) break;
      if (
        best === index ||
        Math.abs(box.left - from.left) < Math.abs(tokens[best].getBoundingClientRect().left - from.left)
      )
        best = at;
    }
    return best;
  }

  // The style sheet paints --fill behind the word and --bar below it.
  const fills = shading(tokens, palette, (token, shade) => {
    mark(token, "--fill", shade && shade.css);
    token.style.color = shade ? shade.ink : "";
  });
  const bars = shading(tokens, palette, (token, shade) => mark(token, "--bar", shade && shade.css));

  return {
    element: h("section", { class: "text" }, title ? h("h3", {}, title) : null, body),
    tokens,
    tint: fills.show,
    underline: bars.show,
    /** Another theme or scale: every shade is made anew. */
    repaint() {
      fills.repaint();
      bars.repaint();
    },
    choose(index, pinned = false) {
      if (chosen !== null) {
        tokens[chosen].classList.remove("chosen", "pinned");
        tokens[chosen].removeAttribute("aria-selected");
      }
      chosen = index !== null && index < tokens.length ? index : null;
      if (chosen === null) return;
      tokens[chosen].classList.add("chosen");
      tokens[chosen].classList.toggle("pinned", pinned);
      tokens[chosen].setAttribute("aria-selected", "true");
    },
    point(index) {
      for (const token of body.querySelectorAll(".pointed")) token.classList.remove("pointed");
      if (index !== null && tokens[index]) tokens[index].classList.add("pointed");
    },
    reveal: (index) => tokens[index] && tokens[index].scrollIntoView({ block: "nearest" }),
    onKey(event) {
      const index = tokens.findIndex((token) => token.matches(":focus"));
      if (index < 0) return false;
      const last = tokens.length - 1;
      const target = { ArrowLeft: index - 1, ArrowRight: index + 1, Home: 0, End: last }[event.key];
      if (target !== undefined) tokens[Math.min(last, Math.max(0, target))].focus();
      else if (event.key === "ArrowUp" || event.key === "ArrowDown")
        tokens[vertical(index, event.key === "ArrowUp" ? -1 : 1)].focus();
      else if (event.key === "Enter" || event.key === " ") onPick(index);
      else return false;
      return true;
    },
  };
}

function mark(token, name, css) {
  if (css) token.style.setProperty(name, css);
  else token.style.removeProperty(name);
}

/** Stores each token's shade and writes only changes. */
function shading(tokens, palette, write) {
  const shades = new Uint8Array(tokens.length);
  let present = null;
  const show = (weights) => {
    present = weights;
    const { of, look } = shadesOf(palette);
    for (let index = 0; index < tokens.length; index += 1) {
      const weight = weights && index < weights.length ? weights[index] : 0;
      const shade = of(weight);
      if (shade === shades[index]) continue;
      shades[index] = shade;
      write(tokens[index], shade ? look(shade, weight) : null);
    }
  };
  const repaint = () => {
    for (let index = 0; index < tokens.length; index += 1) if (shades[index]) write(tokens[index], null);
    shades.fill(0);
    show(present);
  };
  return { show, repaint };
}
