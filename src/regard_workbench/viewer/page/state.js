// The state of the page, mirrored in its URL, so that a link opens the same view.

/**
 * `minus`, `row` and `key` are null when nothing is selected; `call` is −1 for the last one.
 * `v` is a string defined by the open view.
 */
export const defaults = Object.freeze({
  view: "overview",
  variant: 0,
  minus: null,
  site: 0,
  head: 0,
  call: -1,
  row: null,
  key: null,
  sort: "layer",
  scale: "auto",
  theme: "auto",
  v: "",
  canvas: "",
});

const NUMBERS = new Set(["variant", "minus", "site", "head", "call", "row", "key"]);
const LONGEST = 2000;

/** `get()`, `set(patch)`, `subscribe(f(state, changed))`; listeners are called once per patch, only for actual changes. */
export function createStore(initial) {
  let state = { ...defaults, ...initial };
  const listeners = new Set();
  const remembered = new Map();
  return {
    get: () => state,
    set(patch) {
      const next = { ...state, ...patch };
      if (next.view !== state.view && !("v" in patch)) {
        // Each view gets its own `v` back when it is opened again.
        remembered.set(state.view, state.v);
        next.v = remembered.get(next.view) || "";
      }
      const changed = new Set(Object.keys(next).filter((name) => next[name] !== state[name]));
      if (!changed.size) return;
      state = next;
      for (const listener of [...listeners]) listener(state, changed);
    },
    /** Notify listeners of an outside change, such as the system's theme. */
    touch(...names) {
      for (const listener of [...listeners]) listener(state, new Set(names));
    },
    subscribe(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
  };
}

/** The state as a URL fragment; default values are left out. */
export function toHash(state, usual = defaults) {
  const words = new URLSearchParams();
  for (const name of Object.keys(defaults)) {
    const value = state[name];
    if (value === null || value === undefined || value === usual[name]) continue;
    words.set(name, String(value));
  }
  return words.toString();
}

/** A URL fragment as a patch; unknown names and invalid numbers are left out. */
export function fromHash(hash) {
  const patch = {};
  const words = new URLSearchParams(String(hash).replace(/^#/, "").slice(0, LONGEST));
  for (const [name, text] of words) {
    if (!(name in defaults)) continue;
    if (!NUMBERS.has(name)) patch[name] = name === "canvas" ? "1" : text;
    else if (/^-?\d{1,9}$/.test(text)) patch[name] = Number(text);
  }
  return patch;
}

/** The nearest valid state: numbers inside their ranges, an existing view. */
export function fitted(state, scene, views) {
  const inside = (value, count) => Math.min(Math.max(0, value | 0), Math.max(0, count - 1));
  const site = inside(state.site, scene.sites.length);
  const facts = scene.sites[site] || { heads: 1, calls: [] };
  const variants = scene.variants.length;
  const call = state.call < 0 || state.call >= facts.calls.length ? -1 : state.call;
  const view = views.find((candidate) => candidate.name === state.view) || views[0];
  // A view that joins all steps has the rows of all of them.
  const calls = call >= 0 ? [facts.calls[call]] : view && view.rest === "all" ? facts.calls : facts.calls.slice(-1);
  const queries = calls.reduce((sum, one) => sum + one.queries, 0);
  const keys = Math.max(0, ...calls.map((one) => one.keys));
  const within = (value, count) => (value === null || value < 0 || value >= count ? null : value);
  return {
    ...state,
    view: view ? view.name : "overview",
    variant: inside(state.variant, variants),
    minus: state.minus === null || state.minus < 0 || state.minus >= variants ? null : state.minus,
    site,
    head: inside(state.head, facts.heads),
    call,
    row: within(state.row, queries),
    key: within(state.key, keys),
    scale: ["log", "root", "linear"].includes(state.scale) ? state.scale : "auto",
    theme: ["light", "dark"].includes(state.theme) ? state.theme : "auto",
  };
}

/** The call that −1 means: the last one, or (`rest: "all"`) one after it, which is all steps joined. */
export function restingCall(calls, view) {
  return view && view.rest === "all" && calls.length > 1 ? calls.length : calls.length - 1;
}

/** The call `by` steps further. */
export function stepped(calls, call, by, view) {
  const resting = restingCall(calls, view);
  const next = Math.min(Math.max(calls.length - 1, resting), Math.max(0, (call < 0 ? resting : call) + by));
  return next === calls.length ? -1 : next;
}

/**
 * Synchronise URL and store. Opening another view adds an entry to the browser's history, everything else replaces the
 * current one (debounced: browsers refuse hundreds of changes in a few seconds).
 */
export function mirror(store, fit, usual = defaults) {
  let timer = 0;
  let written = location.hash;
  let reading = false;
  const write = (push) => {
    clearTimeout(timer);
    timer = 0;
    const hash = `#${toHash(store.get(), usual)}`;
    if (hash === written || (hash === "#" && !written)) return;
    written = hash;
    try {
      history[push ? "pushState" : "replaceState"](null, "", hash);
    } catch {
      // An embedded page may not be allowed to change the URL; it works without.
    }
  };
  const flush = () => write(false);
  const forget = store.subscribe((state, changed) => {
    if (reading) return;
    if (changed.has("view")) write(true);
    else if (!timer) timer = setTimeout(flush, 200);
  });
  const read = () => {
    if (location.hash === written) return;
    written = location.hash;
    // What came from the URL is not written back: that would drop the forward history.
    reading = true;
    store.set(fit({ ...usual, ...fromHash(location.hash) }));
    reading = false;
  };
  addEventListener("hashchange", read);
  addEventListener("popstate", read);
  addEventListener("pagehide", flush);
  return () => {
    clearTimeout(timer);
    forget();
    removeEventListener("hashchange", read);
    removeEventListener("popstate", read);
    removeEventListener("pagehide", flush);
  };
}
