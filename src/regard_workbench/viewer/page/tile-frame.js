// Draws one frame of a matrix: the visible tiles, or coarser ones until they are loaded.

import { coarsestLevel, levelFor } from "./viewport.js";

/** `draw(viewport, tiles, painter, ratio, paper)` → facts about the frame in `frame`, a reused object. */
export function createTileFrame(side) {
  const frame = { level: 0, coarsest: 0, draws: 0, missing: 0, sampled: false };

  /** Draw the part of a coarser tile in place of a tile that is not loaded yet. */
  const standIn = (tiles, painter, level, x, y, left, top, size) => {
    for (let up = 1; level + up <= frame.coarsest; up += 1) {
      const coarse = tiles.find(level + up, x >> up, y >> up, false);
      if (!coarse) continue;
      const part = side >> up;
      const u = (x & ((1 << up) - 1)) * (side / (1 << up));
      const v = (y & ((1 << up) - 1)) * (side / (1 << up));
      const du = Math.min(part || side / (1 << up), coarse.width - u);
      const dv = Math.min(part || side / (1 << up), coarse.height - v);
      if (du <= 0 || dv <= 0) return;
      const unit = size * (1 << up);
      painter.draw(coarse.texture, u, v, du, dv, left, top, du * unit, dv * unit);
      frame.draws += 1;
      frame.sampled = frame.sampled || coarse.sampled;
      return;
    }
  };

  return {
    frame,
    draw(viewport, tiles, painter, ratio, paper) {
      const scale = viewport.zoom * ratio;
      frame.coarsest = coarsestLevel(viewport.rows, viewport.columns, side);
      frame.level = levelFor(scale, frame.coarsest);
      frame.draws = 0;
      frame.missing = 0;
      frame.sampled = false;
      painter.begin(paper[0], paper[1], paper[2]);
      tiles.begin();
      // The coarsest level is always requested: it is the fallback for everything else.
      if (!tiles.find(frame.coarsest, 0, 0, true)) {
        frame.missing += 1;
        const { glimpse } = tiles;
        if (glimpse) painter.draw(glimpse.texture, 0, 0, glimpse.size, glimpse.size, -viewport.x * scale, -viewport.y * scale, viewport.columns * scale, viewport.rows * scale);
      }
      const step = 2 ** frame.level;
      const size = step * scale; // device pixels of one pixel of this level
      const right = Math.min(viewport.columns, viewport.x + viewport.width / viewport.zoom);
      const bottom = Math.min(viewport.rows, viewport.y + viewport.height / viewport.zoom);
      const firstX = Math.floor(viewport.x / step / side);
      const firstY = Math.floor(viewport.y / step / side);
      const lastX = Math.max(firstX, Math.ceil(right / step / side) - 1);
      const lastY = Math.max(firstY, Math.ceil(bottom / step / side) - 1);
      for (let y = firstY; y <= lastY; y += 1) {
        for (let x = firstX; x <= lastX; x += 1) {
          const left = (x * side * step - viewport.x) * scale;
          const top = (y * side * step - viewport.y) * scale;
          const tile = tiles.find(frame.level, x, y, true);
          if (tile) {
            painter.draw(tile.texture, 0, 0, tile.width, tile.height, left, top, tile.width * size, tile.height * size);
            frame.draws += 1;
            frame.sampled = frame.sampled || tile.sampled;
          } else {
            frame.missing += 1;
            standIn(tiles, painter, frame.level, x, y, left, top, size);
          }
        }
      }
      return frame;
    },
  };
}
