// The data source of a page: the local server, or (embedded.js) the page itself. Both have the same methods, return
// promises and cache results.

const ROWS_KEPT = 400;

/** A failed request; its message is shown to the user. */
export class SourceError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.name = "SourceError";
    this.status = status;
  }
}

/** Data from the server that served this page; of one of its inputs, or of the newest. */
export function remoteSource(base = "/api/", input = null) {
  const own = input === null ? {} : { input };
  const ask = async (path, query, signal, sent = {}) => {
    const words = new URLSearchParams({ ...query, ...own }).toString();
    let answer;
    try {
      answer = await fetch(`${base}${path}${words ? `?${words}` : ""}`, { signal, credentials: "same-origin", ...sent });
    } catch (problem) {
      if (problem.name === "AbortError") throw problem;
      throw new SourceError("The server does not answer. Is `regard view` still running in its terminal?");
    }
    if (!answer.ok) throw new SourceError(await explained(answer), answer.status);
    return answer.arrayBuffer();
  };
  const post = (body, type) => ({ method: "POST", body, headers: { "content-type": type } });
  const scened = async (path, query, sent) => parsed(await ask(path, query, undefined, sent));
  return {
    ...askingSource(ask),
    /** The source of another input of this server. */
    other: (number) => remoteSource(base, number),
    /** Run the model on another input; resolves to its scene. */
    send: (fields) => scened("input", {}, post(JSON.stringify(fields), "application/json")),
    /** What the answer comes from: a sweep of patches, or the faithfulness of maps. */
    cause: (question) => scened("cause", {}, post(JSON.stringify(question), "application/json")),
    sendFile: (file, kind, text) => scened("file", { kind, name: file.name.slice(-100), ...(text ? { text } : {}) }, post(file, "application/octet-stream")),
  };
}

/** The requests of a page over any transport: `ask(path, query, signal)` resolves to an ArrayBuffer. */
export function askingSource(ask) {
  const scene = once(async () => parsed(await ask("scene", {})));
  const lists = new Map();
  const glimpses = new Map();
  const rows = recent(ROWS_KEPT);
  const kept = (store, name, make) => {
    if (!store.has(name)) {
      const promise = make();
      store.set(name, promise);
      // A failure is not cached: the next use requests it again.
      promise.catch(() => store.delete(name));
    }
    return store.get(name);
  };
  const named = (path, query) => `${path} ${Object.values(query).join(" ")} ${Object.keys(query).join(" ")}`;
  const floats = (path, given, extra) => {
    const query = { ...about(given), ...extra };
    return kept(rows, named(path, query), async () => new Float32Array(await ask(path, query, given.signal)));
  };
  return {
    embedded: false,
    digits: null,
    scene,
    keeps: () => true,
    note: () => "",
    overview(given) {
      const query = which(given);
      const name = named("overview", query);
      return kept(lists, name, async () => {
        const overview = readOverview(await ask("overview", query));
        glimpses.set(name, overview);
        return overview;
      });
    },
    glimpse: (given) => glimpseOf(glimpses.get(named("overview", which(given))), given),
    facts(given) {
      const query = which(given);
      return kept(lists, named("facts", query), async () => readFacts(parsed(await ask("facts", query))));
    },
    font: (bold) => kept(lists, `font ${bold}`, async () => {
      const [header, file] = headed(await ask("font", { bold: Number(bold) }));
      return { ...header, file };
    }),
    async tile(given) {
      const query = { ...about(given), level: given.level, x: given.x, y: given.y };
      return readTile(await ask("tile", query, given.signal));
    },
    row: (given) => floats("row", given, { row: given.row }),
    column: (given) => floats("column", given, { key: given.key }),
    async top(given) {
      return parsed(await ask("top", { ...about(given), top: given.top || 8 }, given.signal));
    },
    /** The strongest keys of each row for every head of a site: `{heads, queries, top, keyOf, weightOf}`. */
    strongest(given) {
      const query = { ...which(given), site: given.site, top: given.top };
      return kept(rows, named("strongest", query), async () => readStrongest(await ask("strongest", query)));
    },
    /** Rollout or flow (`kind`) of one row through all layers. */
    through(kind, given) {
      const query = { ...which(given), row: given.row, site: given.site };
      return kept(rows, named(kind, query), async () => new Float32Array(await ask(kind, query, given.signal)));
    },
  };
}

/** A header line of JSON, then `size`·`size` codes for each head: `{size, sampled, heads, codes, of(index)}`. */
export function readOverview(buffer) {
  return overviewOf(...headed(buffer));
}

/** A line of JSON and the bytes after it. */
function headed(buffer) {
  const bytes = new Uint8Array(buffer);
  const end = bytes.indexOf(10);
  return [JSON.parse(new TextDecoder().decode(bytes.subarray(0, end))), bytes.subarray(end + 1)];
}

/** An overview from its header and its codes. */
export function overviewOf(header, codes) {
  const area = header.size * header.size;
  return { size: header.size, sampled: Boolean(header.sampled), heads: header.heads, codes, of: (index) => codes.subarray(index * area, (index + 1) * area) };
}

/** A head's thumbnail from a loaded overview, or null: `{size, codes}`. */
function glimpseOf(overview, { site, head }) {
  const index = overview ? overview.heads.findIndex(([s, h]) => s === site && h === head) : -1;
  return index < 0 ? null : { size: overview.size, codes: overview.of(index) };
}

/** Facts by site and head: `{sites, order, of(site, head)}`. */
export function readFacts(given) {
  const sites = Array.isArray(given) ? given : given.sites || [];
  const bySite = new Map(sites.map((entry) => [entry.site, entry.heads]));
  const of = (site, head) => (bySite.get(site) || [])[head] || null;
  return { ...(Array.isArray(given) ? {} : given), sites, order: given.order || {}, of };
}

/** A cache of the most recent results. */
export function recent(limit) {
  const entries = new Map();
  return {
    has: (name) => entries.has(name),
    get(name) {
      const value = entries.get(name);
      entries.delete(name);
      entries.set(name, value);
      return value;
    },
    set(name, value) {
      entries.set(name, value);
      if (entries.size > limit) entries.delete(entries.keys().next().value);
    },
    delete: (name) => entries.delete(name),
  };
}

/** Returns the promise of the first call for all later ones. */
export function once(f) {
  let promise = null;
  return () => {
    if (!promise) {
      promise = f();
      promise.catch(() => {
        promise = null;
      });
    }
    return promise;
  };
}

function readStrongest(buffer) {
  const [heads, queries, top] = new Uint32Array(buffer, 0, 3);
  const pairs = new Float32Array(buffer, 12);
  return { heads, queries, top, keyOf: (head, row, rank) => pairs[2 * ((head * queries + row) * top + rank)], weightOf: (head, row, rank) => pairs[2 * ((head * queries + row) * top + rank) + 1] };
}

function readTile(buffer) {
  const sizes = new DataView(buffer);
  const width = sizes.getUint16(0, true);
  const height = sizes.getUint16(2, true);
  return { width, height, sampled: Boolean(sizes.getUint8(4) & 1), codes: new Uint8Array(buffer, 8, width * height) };
}

function which({ variant = 0, call = -1 }) {
  return call === null || call < 0 ? { variant } : { variant, call };
}

function about(given) {
  const query = { ...which(given), site: given.site, head: given.head };
  if (given.minus !== null && given.minus !== undefined) query.minus = given.minus;
  return query;
}

function parsed(buffer) {
  return JSON.parse(new TextDecoder().decode(buffer));
}

async function explained(answer) {
  try {
    return (await answer.json()).error || `The server answered ${answer.status}.`;
  } catch {
    if (answer.status === 403) return "This page's session has ended. Open the address that `regard view` printed.";
    return `The server answered ${answer.status}.`;
  }
}
