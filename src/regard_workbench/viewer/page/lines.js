// Lines on a map: its border, the cross at the pointer, the frame of the pinned cell.
// Drawn with the map, because elements above it would be blended in every frame.

const LED_FROM = 10; // pixels of a cell

/** `here` is the hovered cell, `kept` the pinned one (either may have nulls); colours are [r, g, b]. */
export function drawLines(painter, viewport, ratio, here, kept, colors) {
  const { zoom } = viewport;
  const thin = Math.max(1, Math.round(ratio));
  const right = Math.min(viewport.width, (viewport.columns - viewport.x) * zoom) * ratio;
  const bottom = Math.min(viewport.height, (viewport.rows - viewport.y) * zoom) * ratio;
  painter.fill(0, 0, right, thin, colors.edge);
  painter.fill(0, bottom - thin, right, thin, colors.edge);
  painter.fill(0, 0, thin, bottom, colors.edge);
  painter.fill(right - thin, 0, thin, bottom, colors.edge);
  if (here.row !== null && here.key !== null) {
    // From the labels to the cell, not over it, so that its colour stays visible. Cells too small for that get a cross
    // through the whole map.
    const cell = zoom * ratio;
    const x = (here.key - viewport.x) * cell;
    const y = (here.row - viewport.y) * cell;
    const middle = (cell - thin) / 2;
    const led = zoom >= LED_FROM;
    if (y + middle > 0 && y + middle < bottom) painter.fill(0, y + middle, led ? Math.min(x, right) : right, thin, colors.accent);
    if (x + middle > 0 && x + middle < right) painter.fill(x + middle, 0, thin, led ? Math.min(y, bottom) : bottom, colors.accent);
  }
  if (kept.row !== null && kept.key !== null) {
    const size = Math.max(8, zoom + 2) * ratio;
    const left = (kept.key + 0.5 - viewport.x) * zoom * ratio - size / 2;
    const top = (kept.row + 0.5 - viewport.y) * zoom * ratio - size / 2;
    const thick = 2 * thin;
    painter.fill(left, top, size, thick, colors.accent);
    painter.fill(left, top + size - thick, size, thick, colors.accent);
    painter.fill(left, top, thick, size, colors.accent);
    painter.fill(left + size - thick, top, thick, size, colors.accent);
  }
}

/** "#rrggbb" as three numbers. */
export function rgbOf(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}
