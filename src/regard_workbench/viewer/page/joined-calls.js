// A generation with a cache attends step by step, each step a map of one row. For the matrix the steps are joined: every
// site with such calls gets one more call, which holds all rows and becomes "the last call".

const MOST_ROWS = 1024;
const MOST_CALLS = 256;
const AT_ONCE = 4;

/** `{scene, source}` in which call −1 of a decoding site is all of its calls joined. */
export function withJoinedCalls(scene, source) {
  const sites = scene.sites.map((site, index) => (fits(site, index, source) ? { ...site, calls: [...site.calls, whole(site)] } : site));
  const wholes = new Map();
  const isWhole = (given) => sites[given.site] !== scene.sites[given.site] && (given.call === null || given.call < 0 || given.call >= scene.sites[given.site].calls.length);
  const calls = (given) => scene.sites[given.site].calls;

  /** All codes of a head, row by row. */
  const codesOf = (given) => {
    const name = [given.variant, given.site, given.head, given.minus].join(" ");
    if (!wholes.has(name)) {
      if (wholes.size > 24) wholes.clear();
      const promise = gathered(source, given, calls(given), scene.limits);
      promise.catch(() => wholes.delete(name));
      wholes.set(name, promise);
    }
    return wholes.get(name);
  };

  /** The call that a joined row belongs to, and its row there. */
  const placed = (given, row) => {
    let call = 0;
    while (row >= calls(given)[call].queries) row -= calls(given)[call++].queries;
    return { call, row };
  };
  const rowOf = async (given) => {
    const values = await source.row({ ...given, ...placed(given, given.row) });
    const line = new Float32Array(whole(scene.sites[given.site]).keys);
    line.set(values);
    return line;
  };

  return {
    scene: { ...scene, sites },
    source: {
      ...source,
      glimpse: (given) => (isWhole(given) ? null : source.glimpse(given)),
      tile: (given) => (isWhole(given) ? codesOf(given).then((all) => pooled(all, given, (scene.limits || {}).tile || 256)) : source.tile(given)),
      row: (given) => (isWhole(given) ? rowOf(given) : source.row(given)),
      async column(given) {
        if (!isWhole(given)) return source.column(given);
        const parts = await few(calls(given), async (size, call) => (given.key < size.keys ? source.column({ ...given, call }) : new Float32Array(size.queries)));
        return Float32Array.from(parts.flatMap((part) => [...part]));
      },
      async top(given) {
        if (!isWhole(given)) return source.top(given);
        const parts = await few(calls(given), (_, call) => source.top({ ...given, call }));
        return { keys: parts.flatMap((part) => part.keys), weights: parts.flatMap((part) => part.weights) };
      },
    },
    isWhole,
  };
}

/** Whether steps are contiguous and few enough to request all of them. */
function fits(site, index, source) {
  const { calls } = site;
  if (calls.length < 2 || calls.length > MOST_CALLS) return false;
  let next = calls[0].start || 0;
  for (const [number, call] of calls.entries()) {
    if (call.start !== next || !source.keeps({ variant: 0, site: index, head: 0, call: number })) return false;
    next += call.queries;
  }
  return next - (calls[0].start || 0) <= MOST_ROWS;
}

function whole(site) {
  const queries = site.calls.reduce((sum, call) => sum + call.queries, 0);
  return { queries, keys: Math.max(...site.calls.map((call) => call.keys)), start: site.calls[0].start || 0 };
}

async function gathered(source, given, calls, limits) {
  const side = (limits && limits.tile) || 256;
  const { queries, keys } = whole({ calls });
  // No difference is code 128, no weight is code 0.
  const empty = given.minus === null || given.minus === undefined ? 0 : 128;
  const codes = new Uint8Array(queries * keys).fill(empty);
  const tops = [];
  calls.reduce((top, call) => (tops.push(top), top + call.queries), 0);
  const corners = calls.flatMap((call, number) => grid(call, side).map(([x, y]) => ({ call: number, x, y })));
  await few(corners, async ({ call, x, y }) => {
    const tile = await source.tile({ ...given, signal: undefined, call, level: 0, x, y });
    for (let row = 0; row < tile.height; row += 1) codes.set(tile.codes.subarray(row * tile.width, (row + 1) * tile.width), (tops[call] + y * side + row) * keys + x * side);
  });
  return { codes, queries, keys, empty };
}

/** The tiles of a map, [x, y]. */
function grid({ queries, keys }, side) {
  const corners = [];
  for (let y = 0; y * side < queries; y += 1) for (let x = 0; x * side < keys; x += 1) corners.push([x, y]);
  return corners;
}

/** One tile of the whole: the strongest of each `step`×`step`. */
function pooled({ codes, queries, keys, empty }, { level, x, y }, side) {
  const step = 2 ** level;
  const width = Math.min(side, Math.ceil(keys / step) - x * side);
  const height = Math.min(side, Math.ceil(queries / step) - y * side);
  const out = new Uint8Array(width * height).fill(empty);
  for (let row = y * side * step; row < Math.min(queries, (y * side + height) * step); row += 1) {
    const line = (Math.floor(row / step) - y * side) * width - x * side;
    for (let key = x * side * step; key < Math.min(keys, (x * side + width) * step); key += 1) {
      const at = line + Math.floor(key / step);
      const code = codes[row * keys + key];
      if (Math.abs(code - empty) > Math.abs(out[at] - empty)) out[at] = code;
    }
  }
  return { width, height, sampled: false, codes: out };
}

/** All results, a few requests at a time. */
async function few(list, f) {
  const answers = new Array(list.length);
  let next = 0;
  const work = async () => {
    while (next < list.length) {
      const index = next++;
      answers[index] = await f(list[index], index);
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  return answers;
}
