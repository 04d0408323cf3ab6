"""Word alignments of a translation, from attention weights.

A row of the map is a target position, a column a source position; links are pairs (source, target), from 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from regard.errors import BadValue, unknown_name
from regard.observation.analysis.sites import Rows, SiteLike, at, blocks
from regard.support.arguments import finite_number

How = Literal[
    "target", "source", "threshold", "intersection", "union", "grow-diag", "grow-diag-final", "grow-diag-final-and"
]
HOW = ("target", "source", "threshold", "intersection", "union", "grow-diag", "grow-diag-final", "grow-diag-final-and")
Pairs = set[tuple[int, int]]  # (source word, target word), from 0
_AROUND = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))
_SPECIAL = ("[", "]"), ("<", ">")


def align(
    site: SiteLike,
    source: Sequence[str | None] | None = None,
    target: Sequence[str | None] | None = None,
    *,
    how: How = "target",
    threshold: float = 0.2,
    heads: Rows = None,
    back: SiteLike | None = None,
    call: int | None = -1,
    batch: int = 0,
) -> Pairs:
    """Links between the words of a source and of a target, from the mean weights of some heads.

    Args:
        site: attention from target positions (rows) to source positions (columns).
        source: the token of each column. Subword pieces are joined to words; None and special tokens are left out.
            Without it every position is a word.
        target: the same for the rows. (A decoder that reads word t−1 to write word t: the word it writes.)
        how: `target`: the best source word of each target word; `source`: the best target word of each source word;
            `threshold`: all pairs with at least this weight; `intersection`, `union`, `grow-…`: from both directions.
        threshold: the smallest share of a target word's weight, for how="threshold".
        heads: the heads to average; all by default.
        back: attention from the source to the target (rows: source), if there is one, for the other direction.
        call: which call of the site; None joins the steps of a generation to one map.
        batch: which example.
    """
    ahead = word_weights(_mean(site, heads, call, batch), word_of(target), word_of(source))
    if back is None:
        return links(ahead, None, how, threshold)
    return links(ahead, word_weights(_mean(back, heads, call, batch), word_of(source), word_of(target)), how, threshold)


def links(ahead: Tensor, back: Tensor | None = None, how: str = "target", threshold: float = 0.2) -> Pairs:
    """Links of a map of words `ahead` (target, source), and `back` (source, target) for the other direction.

    Without `back` the other direction is read from the columns of `ahead`.
    """
    if how not in HOW:
        raise unknown_name("how", how, HOW)
    if back is not None and tuple(back.shape) != tuple(ahead.shape[::-1]):
        raise BadValue(
            f"back: expected {ahead.shape[1]} source × {ahead.shape[0]} target words, got {tuple(back.shape)}."
        )
    if how == "threshold":
        linked = (ahead >= finite_number("threshold", threshold)) & (ahead > 0)
        return {(int(source), int(target)) for target, source in linked.nonzero().tolist()}
    by_target = {(source, target) for target, source in _best(ahead)}
    by_source = set(_best(ahead.T if back is None else back))
    if how == "target":
        return by_target
    if how == "source":
        return by_source
    return symmetrize(by_target, by_source, how)


def symmetrize(first: Pairs, second: Pairs, how: str) -> Pairs:
    """Combine two directions, as Och and Ney (2003) and Koehn et al. (2003) do.

    `grow-diag` starts from the intersection and adds links of the union that are adjacent to one already there, also
    diagonally, if their source or target word has no link yet. `final` then adds remaining links of both directions if
    one of their words has no link yet, `final-and` if both have none.
    """
    both, either = first & second, first | second
    if how == "intersection":
        return both
    if how == "union":
        return either
    alignment = set(both)
    sources, targets = {s for s, _ in alignment}, {t for _, t in alignment}

    def add(link: tuple[int, int]) -> None:
        alignment.add(link)
        sources.add(link[0])
        targets.add(link[1])

    grown = True
    while grown:
        grown = False
        for source, target in sorted(alignment):
            for down, right in _AROUND:
                near = (source + down, target + right)
                if near in either and near not in alignment and (near[0] not in sources or near[1] not in targets):
                    add(near)
                    grown = True
    if how == "grow-diag":
        return alignment
    needs = all if how == "grow-diag-final-and" else any
    for direction in (first, second):
        for link in sorted(direction):
            if link not in alignment and needs((link[0] not in sources, link[1] not in targets)):
                add(link)
    return alignment


def word_of(pieces: Sequence[str | None] | None) -> list[int | None] | None:
    """The index of the word each piece belongs to; None for special tokens such as [CLS] and </s>.

    Pieces that continue a word begin with `##`; or pieces that begin a word begin with `▁` or `Ġ`; or pieces that do
    not end a word end in `@@`. Without any of these marks every piece is a word.
    """
    if pieces is None:
        return None
    shown = [piece for piece in pieces if piece is not None and not is_special(piece)]
    begins = next((mark for mark in ("▁", "Ġ") if any(piece.startswith(mark) for piece in shown)), "")
    words: list[int | None] = []
    word, open_ = -1, False
    for piece in pieces:
        if piece is None or is_special(piece):
            words.append(None)
            open_ = False
            continue
        continues = not piece.startswith(begins) if begins else piece.startswith("##") and len(piece) > 2
        if not (open_ and continues) and not (open_ and words[-1] is not None and _unended(pieces, len(words) - 1)):
            word += 1
        words.append(word)
        open_ = True
    return words


def is_special(piece: str) -> bool:
    """Whether a piece is a special token: [SEP], <s>, </s>, <|endoftext|>, <pad>."""
    return len(piece) > 2 and any(piece[0] == a and piece[-1] == b and " " not in piece for a, b in _SPECIAL)


def word_weights(weights: Tensor, rows: Sequence[int | None] | None, columns: Sequence[int | None] | None) -> Tensor:
    """A map of pieces (rows, columns) as a map of words: the mean over a word's rows, the sum over its columns."""
    over_rows = _grouping(rows, weights.shape[0], "target")
    over_columns = _grouping(columns, weights.shape[1], "source")
    counts = over_rows.sum(1, keepdim=True).clamp(min=1)
    return (over_rows / counts) @ weights.double() @ over_columns.T


def _grouping(words: Sequence[int | None] | None, count: int, argument: str) -> Tensor:
    """(words, positions), 1 where a position belongs to a word."""
    if words is None:
        return torch.eye(count, dtype=torch.float64)
    if len(words) != count:
        raise BadValue(f"{argument}: expected one piece for each of the {count} positions, got {len(words)}.")
    table = torch.zeros(max((word + 1 for word in words if word is not None), default=0), count, dtype=torch.float64)
    for position, word in enumerate(words):
        if word is not None:
            table[word, position] = 1.0
    return table


def _mean(site: SiteLike, heads: Rows, call: int | None, batch: int) -> Tensor:
    """The mean of chosen heads, (rows, columns)."""
    site, which = at(site, call)
    rows = torch.arange(site.shape(which)[2])
    picked = slice(None) if heads is None else heads
    means = [weights[picked].mean(0) for _, weights in blocks(site, rows, which, batch)]
    return torch.cat(means) if means else torch.zeros(0, site.shape(which)[3])


def _best(weights: Tensor) -> list[tuple[int, int]]:
    """(row, column of its largest weight), the first of equals; rows without weight are left out."""
    if not weights.shape[1]:
        return []
    largest, column = weights.max(1)
    return [(row, int(column[row])) for row in range(len(weights)) if float(largest[row]) > 0]


def _unended(pieces: Sequence[str | None], index: int) -> bool:
    piece = pieces[index]
    return piece is not None and len(piece) > 2 and piece.endswith("@@")
