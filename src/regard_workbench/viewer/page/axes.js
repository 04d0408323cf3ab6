// Axis labels of a matrix: tokens where they fit, else positions.

const FONT = "11px system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'Liberation Sans', sans-serif";
const SMALLEST = 12;
const TILT = -Math.PI / 3;
// Unicode isolates, so that a right-to-left token does not reorder its neighbours.
const [ISOLATE, RELEASE] = ["\u2068", "\u2069"];

/** Whether cells are large enough for the tokens' texts. */
export function hasWords(zoom) {
  return zoom >= SMALLEST;
}

/** Space for position numbers where tokens do not fit. */
export const NARROW = Object.freeze({ left: 50, top: 26, right: 16 });

/** Space for the labels: `{left, top, right}` in pixels, from a sample of the texts. Tilted labels extend to the right. */
export function roomFor(rowText, rows, columnText, columns) {
  const paint = document.createElement("canvas").getContext("2d");
  paint.font = FONT;
  const longest = (text, count) => {
    const widths = [];
    const step = Math.max(1, Math.floor(count / 400));
    for (let index = 0; index < count; index += step) widths.push(paint.measureText(text(index)).width);
    widths.sort((a, b) => a - b);
    const most = widths[widths.length - 1] || 0;
    // A few very long labels are cut, so that they do not take the space of the others.
    return most < 90 ? most : Math.max(90, widths[Math.floor(0.96 * (widths.length - 1))]);
  };
  const above = longest(columnText, columns);
  const top = Math.round(Math.min(104, Math.max(34, above * -Math.sin(TILT) + 20)));
  return {
    left: Math.round(Math.min(124, Math.max(50, longest(rowText, rows) + 16))),
    top,
    right: Math.round(Math.max(NARROW.right, Math.min(above, (top - 12) / 0.87) * Math.cos(TILT))),
  };
}

/** Draws both axes; `look` gives the colours {ink, soft, faint, accent}. */
export function createAxes(leftCanvas, topCanvas) {
  const left = leftCanvas.getContext("2d", { willReadFrequently: true });
  const top = topCanvas.getContext("2d", { willReadFrequently: true });
  const size = { width: 0, height: 0, left: 0, top: 0, right: 0, ratio: 1 };
  return {
    resize(width, height, room, ratio) {
      Object.assign(size, { width, height, left: room.left, top: room.top, right: room.right, ratio });
      setSize(leftCanvas, room.left, height, ratio);
      setSize(topCanvas, width + room.left + room.right, room.top, ratio);
    },
    draw(viewport, rowText, columnText, here, look) {
      left.setTransform(size.ratio, 0, 0, size.ratio, 0, 0);
      left.clearRect(0, 0, size.left, size.height);
      top.setTransform(size.ratio, 0, 0, size.ratio, 0, 0);
      top.clearRect(0, 0, size.width + size.left + size.right, size.top);
      left.font = FONT;
      top.font = FONT;
      drawRows(left, size, viewport, rowText, here.row, look);
      drawColumns(top, size, viewport, columnText, here.key, look);
    },
  };
}

/** Steps of 1, 2, 5, 10 … so that ticks are at least `apart` pixels apart. */
export function stepFor(zoom, apart) {
  let step = 1;
  for (let turn = 0; step * zoom < apart; turn += 1) step *= turn % 3 === 1 ? 2.5 : 2;
  return Math.round(step);
}

function drawRows(paint, size, viewport, text, here, look) {
  const { zoom, y } = viewport;
  const last = Math.min(viewport.rows, Math.ceil(y + viewport.height / zoom));
  paint.textAlign = "right";
  paint.textBaseline = "middle";
  const words = hasWords(zoom);
  const step = words ? 1 : stepFor(zoom, 44);
  for (let row = firstMark(y, step); row < last; row += step) {
    const at = (row + 0.5 - y) * zoom;
    if (at < 0 || at > size.height) continue;
    const chosen = row === here;
    paint.fillStyle = chosen ? look.accent : words ? look.ink : look.faint;
    if (words) paint.fillText(fitted(paint, text(row), size.left - 12), size.left - 8, at);
    else {
      paint.fillText(String(row), size.left - 9, at);
      paint.fillRect(size.left - 5, at - 0.5, 4, 1);
    }
  }
  if (!words && here !== null && here >= y && here < last) marked(paint, size.left - 8, (here + 0.5 - y) * zoom, fitted(paint, text(here), size.left - 12), look, size.left);
}

function drawColumns(paint, size, viewport, text, here, look) {
  const { zoom, x } = viewport;
  const last = Math.min(viewport.columns, Math.ceil(x + viewport.width / zoom));
  const words = hasWords(zoom);
  const step = words ? 1 : stepFor(zoom, 64);
  const longest = (size.top - 12) / 0.87;
  for (let column = firstMark(x, step); column < last; column += step) {
    const at = (column + 0.5 - x) * zoom;
    if (at < 0 || at > size.width) continue;
    paint.fillStyle = column === here ? look.accent : words ? look.ink : look.faint;
    if (words) tilted(paint, fitted(paint, text(column), longest), at + size.left, size.top - 6);
    else {
      paint.textAlign = "center";
      paint.textBaseline = "alphabetic";
      paint.fillText(String(column), at + size.left, size.top - 9);
      paint.fillRect(at + size.left - 0.5, size.top - 5, 1, 4);
    }
  }
  if (words || here === null || here < x || here >= last) return;
  const at = (here + 0.5 - x) * zoom + size.left;
  const words_ = fitted(paint, text(here), 110);
  const half = paint.measureText(words_).width / 2 + 4;
  paint.clearRect(at - half, size.top - 22, 2 * half, 22);
  paint.fillStyle = look.accent;
  paint.textAlign = "center";
  paint.textBaseline = "alphabetic";
  paint.fillText(words_, at, size.top - 9);
  paint.fillRect(at - 0.5, size.top - 5, 1, 4);
}

/** The first tick at or after a position; ticks are at multiples of the step. */
export function firstMark(start, step) {
  return Math.ceil(Math.floor(start) / step) * step;
}

function tilted(paint, text, x, y) {
  paint.save();
  paint.translate(x, y);
  paint.rotate(TILT);
  paint.textAlign = "left";
  paint.textBaseline = "middle";
  paint.fillText(text, 0, 0);
  paint.restore();
}

function marked(paint, x, y, text, look, width) {
  paint.clearRect(0, y - 9, width, 18);
  paint.fillStyle = look.accent;
  paint.fillText(text, x - 1, y);
  paint.fillRect(width - 5, y - 0.5, 4, 1);
}

const lengths = new Map();

/** A text cut to a width; cached, since every frame needs the same ones. */
function fitted(paint, text, room) {
  const name = `${text}\u0000${Math.round(room)}`;
  let cut = lengths.get(name);
  if (cut === undefined) {
    cut = text;
    const signs = Array.from(text);
    while (signs.length > 1 && paint.measureText(cut).width > room) {
      signs.pop();
      cut = `${signs.join("")}…`;
    }
    cut = `${ISOLATE}${cut}${RELEASE}`;
    if (lengths.size > 20000) lengths.clear();
    lengths.set(name, cut);
  }
  return cut;
}

function setSize(canvas, width, height, ratio) {
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
}
