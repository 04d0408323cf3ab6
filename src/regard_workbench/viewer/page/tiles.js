// A cache of tiles: requested when visible, dropped when there is no room.

const IN_FLIGHT = 4;
const KEPT = 320;
const RETRY_AFTER = 4000;
const SPAN = 2 ** 20;

/** A tile's key as a number: frames allocate no strings. */
function nameOf(level, x, y) {
  return (level * SPAN + y) * SPAN + x;
}

export class Tiles {
  /** `ready()` is called when a tile is loaded, `failed(problem)` when a request fails. */
  constructor(source, painter, ready, failed) {
    this.source = source;
    this.painter = painter;
    this.ready = ready;
    this.failed = failed;
    this.sheets = new Map();
    this.sheet = null;
    this.wanted = [];
    this.flying = 0;
    this.count = 0;
    this.clock = 0;
    this.glimpse = null;
  }

  /** Show another head: `which` is {variant, site, head, call, minus}. Pending requests for others are cancelled. */
  turn(which) {
    const name = [which.variant, which.site, which.head, which.call, which.minus].join(" ");
    if (this.sheet && this.sheet.name === name) return;
    if (this.sheet) this.sheet.stop.abort();
    let sheet = this.sheets.get(name);
    if (!sheet) {
      sheet = { name, which: { variant: which.variant, site: which.site, head: which.head, call: which.call, minus: which.minus }, tiles: new Map() };
      this.sheets.set(name, sheet);
    }
    sheet.stop = new AbortController();
    for (const [key, tile] of sheet.tiles) if (tile.state !== "here") sheet.tiles.delete(key);
    this.sheet = sheet;
    this.wanted.length = 0;
    // Until the first tile is loaded, the overview's thumbnail is shown, if loaded.
    const glimpse = sheet.tiles.size || which.minus !== null ? null : this.source.glimpse(which);
    if (this.glimpse) this.painter.release(this.glimpse.texture);
    this.glimpse = glimpse && { size: glimpse.size, texture: this.painter.upload(glimpse.codes, glimpse.size, glimpse.size) };
  }

  /** Begin a frame: only its tiles are requested. */
  begin() {
    this.clock += 1;
    this.wanted.length = 0;
  }

  /** The tile if loaded, else null (and it is requested if `ask`). */
  find(level, x, y, ask) {
    const key = nameOf(level, x, y);
    const tile = this.sheet.tiles.get(key);
    if (tile && tile.state === "here") {
      tile.seen = this.clock;
      return tile;
    }
    if (ask && (!tile || (tile.state === "failed" && performance.now() > tile.again))) this.wanted.push({ key, level, x, y });
    return null;
  }

  /** Request the tiles of this frame: coarse before fine, else in order. */
  fetch() {
    if (this.flying >= IN_FLIGHT || !this.wanted.length) return;
    this.wanted.sort((a, b) => b.level - a.level);
    while (this.flying < IN_FLIGHT && this.wanted.length) this.send(this.wanted.shift());
  }

  /** Codes of a tile for figures and read-outs, requested if not loaded. */
  async codes(level, x, y) {
    const tile = this.sheet.tiles.get(nameOf(level, x, y));
    return tile && tile.state === "here" ? tile : this.source.tile({ ...this.sheet.which, level, x, y });
  }

  /** Whether everything requested is loaded. */
  idle() {
    return this.flying === 0 && !this.wanted.length;
  }

  /** After a lost GPU context: upload the cached tiles again. */
  restore() {
    this.glimpse = null;
    for (const sheet of this.sheets.values()) for (const tile of sheet.tiles.values()) if (tile.state === "here") tile.texture = this.painter.upload(tile.codes, tile.width, tile.height);
  }

  destroy() {
    if (this.sheet) this.sheet.stop.abort();
    this.ready = () => {};
    this.failed = () => {};
  }

  async send({ key, level, x, y }) {
    const { sheet } = this;
    const { signal } = sheet.stop;
    sheet.tiles.set(key, { state: "flying" });
    this.flying += 1;
    try {
      const { width, height, sampled, codes } = await this.source.tile({ ...sheet.which, level, x, y, signal });
      if (signal.aborted) return;
      const texture = this.painter.upload(codes, width, height);
      sheet.tiles.set(key, { state: "here", width, height, sampled, codes, texture, seen: this.clock });
      this.count += 1;
      if (this.count > KEPT) this.forget();
    } catch (problem) {
      if (signal.aborted) return;
      sheet.tiles.set(key, { state: "failed", again: performance.now() + RETRY_AFTER });
      this.failed(problem);
    } finally {
      this.flying -= 1;
      this.ready();
    }
  }

  /** Drop the least recently used quarter of the tiles. */
  forget() {
    const all = [];
    for (const sheet of this.sheets.values()) for (const [key, tile] of sheet.tiles) if (tile.state === "here") all.push({ sheet, key, tile });
    all.sort((a, b) => a.tile.seen - b.tile.seen);
    for (const { sheet, key, tile } of all.slice(0, KEPT >> 2)) {
      this.painter.release(tile.texture);
      sheet.tiles.delete(key);
      if (!sheet.tiles.size && sheet !== this.sheet) this.sheets.delete(sheet.name);
    }
    this.count = all.length - (KEPT >> 2);
  }
}
