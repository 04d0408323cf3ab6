// The visible part of a matrix: its upper left corner in weights, and CSS pixels per weight.

export const LARGEST_CELL = 72;
const COMFORTABLE_CELL = 40;

/** A window of `width` × `height` pixels on `columns` × `rows` weights. Methods change it in place: frames allocate nothing. */
export class Viewport {
  constructor() {
    this.x = 0;
    this.y = 0;
    this.zoom = 1;
    this.width = 1;
    this.height = 1;
    this.columns = 1;
    this.rows = 1;
  }

  /** The zoom at which everything is visible. */
  whole() {
    return Math.min(this.width / this.columns, this.height / this.rows, COMFORTABLE_CELL);
  }

  isWhole() {
    return this.zoom <= this.whole() * 1.0001;
  }

  fit() {
    this.x = 0;
    this.y = 0;
    this.zoom = this.whole();
  }

  /** Resize the window; if the whole matrix was visible, it stays so. */
  resize(width, height) {
    const whole = this.isWhole();
    this.width = Math.max(1, width);
    this.height = Math.max(1, height);
    if (whole) this.fit();
    else this.settle();
  }

  /** Set another matrix; true if its shape differs and the window was reset. */
  reshape(rows, columns) {
    if (rows === this.rows && columns === this.columns) return false;
    this.rows = Math.max(1, rows);
    this.columns = Math.max(1, columns);
    this.fit();
    return true;
  }

  panBy(dx, dy) {
    this.x -= dx / this.zoom;
    this.y -= dy / this.zoom;
    this.settle();
  }

  /** Zoom by a factor so that what is at pixel (px, py) stays there. */
  zoomAt(factor, px, py) {
    const zoom = this.allowed(this.zoom * factor);
    this.x += px / this.zoom - px / zoom;
    this.y += py / this.zoom - py / zoom;
    this.zoom = zoom;
    this.settle();
  }

  allowed(zoom) {
    return Math.min(Math.max(zoom, this.whole()), Math.max(LARGEST_CELL, this.whole()));
  }

  /** Stay inside the edges; a matrix smaller than the window is at the upper left. */
  settle() {
    this.zoom = this.allowed(this.zoom);
    this.x = Math.min(Math.max(0, this.x), Math.max(0, this.columns - this.width / this.zoom));
    this.y = Math.min(Math.max(0, this.y), Math.max(0, this.rows - this.height / this.zoom));
  }

  /** Scroll a cell into view with a margin. */
  reveal(row, column) {
    const room = Math.min(3, this.width / this.zoom / 4, this.height / this.zoom / 4);
    this.x = Math.min(Math.max(this.x, column + 1 + room - this.width / this.zoom), Math.max(0, column - room));
    this.y = Math.min(Math.max(this.y, row + 1 + room - this.height / this.zoom), Math.max(0, row - room));
    this.settle();
  }

  rowAt(py) {
    const row = Math.floor(this.y + py / this.zoom);
    return row >= 0 && row < this.rows ? row : null;
  }

  columnAt(px) {
    const column = Math.floor(this.x + px / this.zoom);
    return column >= 0 && column < this.columns ? column : null;
  }

  /** First and one-past-last visible weights. */
  seen() {
    return {
      left: Math.floor(this.x),
      top: Math.floor(this.y),
      right: Math.min(this.columns, Math.ceil(this.x + this.width / this.zoom)),
      bottom: Math.min(this.rows, Math.ceil(this.y + this.height / this.zoom)),
    };
  }

  /** For the URL: centre and zoom, which do not depend on the window size. */
  toText() {
    if (this.isWhole()) return "";
    const middle = (start, size, count) => Math.min(start + size / this.zoom / 2, count);
    return [middle(this.x, this.width, this.columns), middle(this.y, this.height, this.rows), this.zoom].map((value) => Number(value.toPrecision(7))).join("_");
  }

  fromText(text) {
    const numbers = String(text).split("_").map(Number);
    if (numbers.length !== 3 || !numbers.every(Number.isFinite) || numbers[2] <= 0) {
      this.fit();
      return;
    }
    this.zoom = this.allowed(numbers[2]);
    this.x = numbers[0] - this.width / this.zoom / 2;
    this.y = numbers[1] - this.height / this.zoom / 2;
    this.settle();
  }
}

/** The level whose pixels are at least one and less than two screen pixels wide: so none is skipped or wasted. */
export function levelFor(devicePixels, coarsest) {
  return Math.min(coarsest, Math.max(0, Math.ceil(-Math.log2(devicePixels) - 1e-9)));
}

/** The level at which a whole matrix is one tile. */
export function coarsestLevel(rows, columns, side) {
  return Math.max(0, Math.ceil(Math.log2(Math.max(rows, columns, 1) / side)));
}
