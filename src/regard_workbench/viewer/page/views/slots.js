// Which slots of a memory are shown: a machine with 128 slots may use ten of them.

const USED = 0.05; // the smallest weight that counts as use
const WORTH = 0.7; // a part of the memory is shown only if it is clearly smaller than the whole

/**
 * The shortest range of the ring of slots with every used slot, in its order; null when that is nearly all.
 * `pictures` have slots down; a memory is a ring, since a head that shifts beyond the last slot comes to the first.
 */
export function stretchInUse(pictures, slots, weightOf) {
  const used = Array.from({ length: slots }, (_, slot) =>
    pictures.some((picture) => strongestIn(picture, slot, weightOf) >= USED),
  );
  const places = used.flatMap((is, slot) => (is ? [slot] : []));
  if (!places.length) return null;
  let [start, gap] = [places[0], 0];
  places.forEach((slot, index) => {
    const before = places[(index + places.length - 1) % places.length];
    const away = (slot - before + slots) % slots || slots;
    if (away > gap) [start, gap] = [slot, away];
  });
  const length = slots - gap + 1;
  // A neighbour on either side shows that nothing happens there.
  const first = start - 1 + slots;
  return length + 2 <= WORTH * slots ? Array.from({ length: length + 2 }, (_, index) => (first + index) % slots) : null;
}

/** A picture of some of its lines. */
export function linesOf(picture, rows) {
  const codes = new Uint8Array(rows.length * picture.width);
  rows.forEach((row, index) =>
    codes.set(picture.codes.subarray(row * picture.width, (row + 1) * picture.width), index * picture.width),
  );
  return { ...picture, height: rows.length, codes, queries: rows.length };
}

function strongestIn({ codes, width }, slot, weightOf) {
  let most = 0;
  for (let step = 0; step < width; step += 1) most = Math.max(most, codes[slot * width + step]);
  return weightOf(most);
}
