"""Sums over the rows of a site's heads, from which patterns are scored; definitions in `patterns.py`."""

from __future__ import annotations

from typing import SupportsFloat

import torch
from torch import Tensor

from regard.observation.analysis import segments
from regard.observation.analysis.geometry import Geometry

FEWEST = 3  # the fewest rows with a repeated token that score induction
BY_MASK = ("previous token", "next token", "diagonal", "first token", "induction", "duplicate token")
_STEPS = (0, 1, 2, 4, 8)  # distances at which a new class begins, on both sides
_QUARTERS = 4
KINDS = len(BY_MASK) + 1 + 2 * len(_STEPS) - 1 + _QUARTERS  # features of a row computed by one product


class Tally:
    """Sums over rows, for all heads of a site at once; nothing here is larger than (heads, keys)."""

    def __init__(self, heads: int, form: Geometry, ids: Tensor | None) -> None:
        self.form, self.ids = form, ids
        double = torch.float64
        count = len(BY_MASK)
        self.gain, self.room = (torch.zeros(heads, count, dtype=double), torch.zeros(heads, count, dtype=double))
        self.judged = torch.zeros(heads, count, dtype=double)  # rows
        self.near, self.reach = torch.zeros(heads, dtype=double), torch.zeros(heads, dtype=double)
        self.even, self.even_room = torch.zeros(heads, dtype=double), torch.zeros(heads, dtype=double)
        self.entropy, self.relative = torch.zeros(heads, dtype=double), torch.zeros(heads, dtype=double)
        self.rows, self.open = torch.zeros(heads, dtype=double), torch.zeros(heads, dtype=double)
        self.profile = torch.zeros(heads, 2 * len(_STEPS) - 1 + _QUARTERS, dtype=double)
        # Per column: received weight, weight expected by chance, number of rows that see it.
        self.got, self.chance, self.seen_by = (torch.zeros(heads, form.keys, dtype=double) for _ in range(3))
        self.width = -(-max(form.keys, 1) // segments.CELLS)
        self.cells: list[Tensor] = []  # (heads, rows, cells) of each block
        self.cells_seen: list[Tensor] = []  # (rows, cells): expected by chance
        self.cell: list[Tensor] = []  # (rows,)

    def add(self, rows: Tensor, weights: Tensor) -> None:
        """Add rows with their weights (heads, rows, k)."""
        visible = self.form.visible(rows)
        total = weights.sum(-1)
        count = visible.sum(-1).double()  # (rows,)
        shared = (weights >= 0).all(-1)  # effective weights may be negative, so they are no distribution
        good = (torch.isfinite(total) & (total > 0) & shared & (count > 0)).double()  # (heads, rows)
        shares = weights * (good / torch.where(good > 0, total, 1)).float()[..., None]
        shares = torch.where((good > 0)[..., None], shares, 0)  # 0 · NaN
        even = (visible / count.clamp(min=1)[:, None]).float()
        position, key = self.form.positions(rows), torch.arange(self.form.keys)
        masks = self._masks(position, key) & visible[None]
        kinds = torch.cat([masks.float(), self._distance(position, key)[None], self._classes(position, key)])
        # Everything that is linear in the weights, in one product: (rows, heads, k) × (rows, k, kinds).
        read = torch.bmm(shares.transpose(0, 1), kinds.permute(1, 2, 0)).permute(1, 2, 0).double()
        by_chance = torch.einsum("rk,prk->pr", even, kinds).double()
        n = len(BY_MASK)
        named = (masks.sum(-1) > 0) & (masks.sum(-1) < count)  # (patterns, rows)
        says = good[:, None] * named
        self.gain += (says * (read[:, :n] - by_chance[:n])).sum(-1)
        self.room += (says * (1 - by_chance[:n])).sum(-1)
        self.judged += says.sum(-1)
        choice = good * (count > 1)
        self.near += (choice * read[:, n]).sum(-1)
        self.reach += (choice * by_chance[n]).sum(-1)
        self.profile += (good[:, None] * read[:, n + 1 :]).sum(-1)
        overlap = torch.minimum(shares, even).sum(-1).double()
        self.even += (choice * (overlap - 1 / count.clamp(min=1))).sum(-1)
        self.even_room += (choice * (1 - 1 / count.clamp(min=1))).sum(-1)
        entropy = torch.special.entr(shares).sum(-1).double()
        self.entropy += (good * entropy).sum(-1)
        self.relative += (choice * entropy / count.clamp(min=2).log()).sum(-1)
        self.rows += good.sum(-1)
        self.open += choice.sum(-1)
        self.got += shares.sum(1)
        self.chance += good @ even.double()
        self.seen_by += good @ visible.double()
        self._add_cells(shares, even, position)

    def _masks(self, position: Tensor, key: Tensor) -> Tensor:
        """The keys of each pattern of `BY_MASK`, (patterns, rows, k); none where rows have no positions."""
        none = torch.zeros(len(position), len(key), dtype=torch.bool)
        at = position[:, None]
        positional = self.form.offset is not None
        masks = [key == at + step if positional else none for step in (-1, 1, 0)]
        masks.append((key == self.form.first).expand(len(position), -1))
        if self.ids is None or not positional:
            return torch.stack([*masks, none, none])
        same = (self.ids[position.clamp(0, len(key) - 1)][:, None] == self.ids) & (at >= 0) & (at < len(key))
        followed = torch.nn.functional.pad(same[:, :-1], (1, 0)) & (key < at)
        return torch.stack([*masks, followed, same & (key != at)])

    def _distance(self, position: Tensor, key: Tensor) -> Tensor:
        if self.form.offset is None:
            return torch.zeros(len(position), len(key))
        return (position[:, None] - key).abs().float()

    def _classes(self, position: Tensor, key: Tensor) -> Tensor:
        """Keys by distance, in widening classes, and by quarter of the sequence, (classes, rows, k)."""
        away = position[:, None] - key
        ends = [*_STEPS[1:], self.form.keys + 1]
        classes = [away == 0]
        for low, high in zip(_STEPS[1:], ends[1:], strict=True):
            classes += [(away >= low) & (away < high), (-away >= low) & (-away < high)]
        if self.form.offset is None:
            classes = [torch.zeros_like(mask) for mask in classes]
        length = max(1, self.form.last - self.form.first + 1)
        quarter = ((key - self.form.first) * _QUARTERS // length).expand(len(position), -1)
        return torch.stack([*classes, *(quarter == number for number in range(_QUARTERS))]).float()

    def _add_cells(self, shares: Tensor, even: Tensor, position: Tensor) -> None:
        def pooled(table: Tensor) -> Tensor:
            more = -table.shape[-1] % self.width
            cells: Tensor = torch.nn.functional.pad(table, (0, more)).unflatten(-1, (-1, self.width)).sum(-1)
            return cells

        if self.form.offset is not None and self.form.keys:
            self.cells.append(pooled(shares))
            self.cells_seen.append(pooled(even))
            self.cell.append(position // self.width)

    def scores(self, head: int) -> dict[str, float]:
        """The scores of one head; patterns that cannot be scored are absent."""
        scores = self._pointing(head)
        column, share = self.column(head)
        if column is not None:
            scores["one column"] = share
        if self.cells:
            scores["block"] = self._block(head)
        if self.form.offset is not None and self.reach[head] > 0:
            scores["local"] = _score(self.reach[head] - self.near[head], self.reach[head])
        if self.even_room[head] > 0:
            scores["uniform"] = _score(self.even[head], self.even_room[head])
        return scores

    def mean_entropy(self, head: int) -> float:
        """The mean entropy of a row, in nats."""
        return float(self.entropy[head] / self.rows[head].clamp(min=1))

    def shares(self, head: int) -> tuple[float, ...]:
        """Weight by distance and by quarter of the keys, and the entropy relative to its maximum."""
        spread_out = float(self.relative[head] / self.open[head].clamp(min=1))
        return (*(self.profile[head] / self.rows[head].clamp(min=1)).tolist(), spread_out)

    def _pointing(self, head: int) -> dict[str, float]:
        scores: dict[str, float] = {}
        for number, name in enumerate(BY_MASK):
            fewest = FEWEST if name in ("induction", "duplicate token") else 1
            if self.judged[head, number] >= fewest:
                scores[name] = _score(self.gain[head, number], self.room[head, number])
        return scores

    def column(self, head: int) -> tuple[int | None, float]:
        """The column, apart from the first, with the largest weight beyond chance, and that share.

        Only columns that at least half of the rows see are considered.
        """
        got, chance, seen_by = self.got[head].clone(), self.chance[head].clone(), self.seen_by[head].clone()
        key = torch.arange(self.form.keys)
        if self.form.first < self.form.keys:
            got[self.form.first] = chance[self.form.first] = seen_by[self.form.first] = 0
        if self.ids is not None:  # all columns with the same token together
            classes = int(self.ids.max()) + 1 if len(self.ids) else 0
            zero = torch.zeros(classes, dtype=got.dtype)
            got = zero.index_add(0, self.ids, got)[self.ids]
            chance = zero.index_add(0, self.ids, chance)[self.ids]
            seen_by = zero.scatter_reduce(0, self.ids, seen_by, "amax")[self.ids]
        room = seen_by - chance
        allowed = (seen_by > 0) & (2 * seen_by >= self.rows[head]) & (room > 0)
        allowed &= key != self.form.first
        if not bool(allowed.any()):
            return None, 0.0
        share = torch.where(allowed, (got - chance) / torch.where(allowed, room, 1), -torch.inf)
        best = float(share.max())
        # Of columns with the same token, the one with the most weight.
        column = int(torch.where(share >= best, self.got[head], -torch.inf).argmax())
        return column, min(1.0, max(0.0, best))

    def _block(self, head: int) -> float:
        shares = torch.cat([cells[head] for cells in self.cells]).double().numpy()
        visible, cell = torch.cat(self.cells_seen).double().numpy(), torch.cat(self.cell).numpy()
        attending = shares.sum(1) > 0
        shares, visible, cell = shares[attending], visible[attending], cell[attending]
        begins = segments.borders(segments.passing(shares, cell))
        if not begins:
            return 0.0
        within, away = segments.inside(shares, cell, begins)
        chance, reach = segments.inside(visible, cell, begins)
        return _score((within - chance).sum(), (1 - chance).sum()) * min(1.0, away / max(reach, 1e-9))


def _score(gain: SupportsFloat, room: SupportsFloat) -> float:
    return min(1.0, max(0.0, float(gain) / float(room))) if float(room) > 1e-6 else 0.0
