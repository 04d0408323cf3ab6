// The tiles of the heads looked at last: asked for as they come into sight, kept as long as there is room.

const IN_FLIGHT = 4;
const KEPT = 320;
const RETRY_AFTER = 4000;
const SPAN = 2 ** 20;

/** One tile's name as a number: frames build no strings. */
function nameOf(level, x, y) {
  return (level * SPAN + y) * SPAN + x;
}

export class Tiles {
  /** `ready()` is called when a tile came, `failed(problem)` when one did not. */
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

  /** Look at another head: `which` is {variant, site, head, call, minus}. What was still on its way for another is let go. */
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
    // Until the first tile comes, the small map of the overview (when it was seen) stands in.
    const glimpse = sheet.tiles.size || which.minus !== null ? null : this.source.glimpse(which);
    if (this.glimpse) this.painter.release(this.glimpse.texture);
    this.glimpse = glimpse && { size: glimpse.size, texture: this.painter.upload(glimpse.codes, glimpse.size, glimpse.size) };
  }

  /** A new frame begins: what is wanted is what this frame wants. */
  begin() {
    this.clock += 1;
    this.wanted.length = 0;
  }

  /** The tile when it is here, else null (and it is asked for when `ask`). */
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

  /** Send for what this frame wanted: coarse before fine, else in the order of asking. */
  fetch() {
    if (this.flying >= IN_FLIGHT || !this.wanted.length) return;
    this.wanted.sort((a, b) => b.level - a.level);
    while (this.flying < IN_FLIGHT && this.wanted.length) this.send(this.wanted.shift());
  }

  /** Codes of a tile for pictures and read-outs, asked for when it is not here. */
  async codes(level, x, y) {
    const tile = this.sheet.tiles.get(nameOf(level, x, y));
    return tile && tile.state === "here" ? tile : this.source.tile({ ...this.sheet.which, level, x, y });
  }

  /** Whether everything asked for has come. */
  idle() {
    return this.flying === 0 && !this.wanted.length;
  }

  /** After the card forgot everything: put what is known back upon it. */
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

  /** Let go of the quarter of the tiles that was not seen for longest. */
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
