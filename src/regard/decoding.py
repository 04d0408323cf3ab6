"""Decoding: sequences from a step function, by greedy choice, sampling or beam search.

All three take a function `step(prefixes (n,t)) -> log-probabilities (n, vocab)`. A step with a cache also has a method
`step.reorder(index (n,))`, after which row i continues the former row index[i]. `start` (b,t0) holds the given tokens,
which the results do not contain; `end` is the token that finishes a sequence, which they do contain.

    >>> import torch
    >>> table = torch.tensor([[0.1, 0.6, 0.3], [0.5, 0.2, 0.3], [0.4, 0.5, 0.1]]).log()  # next token, given the last
    >>> best = beam_search(lambda prefixes: table[prefixes[:, -1]], torch.tensor([[2]]), end=0, beam=2)
    >>> best[0][0].tokens
    [1, 0]
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.errors import BadType, BadValue
from regard.support.arguments import described, finite_number, whole_number

__all__ = ["Hypothesis", "beam_search", "greedy", "sample"]

Step = Callable[[Tensor], Tensor]

_WIDEST = 1024  # the widest beam with which a search is repeated because of dead ends
_ROUNDING = 1e-3  # how far rounding in half precision may lift a log-probability above 0


@dataclass(frozen=True)
class Hypothesis:
    """A decoded sequence: its tokens (without start, with end) and its length-normalised log-probability."""

    tokens: list[int]
    score: float
    finished: bool = True


@torch.no_grad()
def greedy(step: Step, start: Tensor, *, end: int, max_length: int = 100) -> list[Hypothesis]:
    """Choose the most likely token at each step, for every row of `start`; ties go to the lowest id."""
    beams = beam_search(step, start, end=end, beam=1, max_length=max_length)
    for row, best in enumerate(beams):
        if not best:
            raise BadValue(
                f"step: no sequence exists for row {row} of start: every prefix ends where all tokens have a "
                f"log-probability of −inf. At least one token must stay possible until the end token {end}."
            )
    return [best[0] for best in beams]


@torch.no_grad()
def sample(
    step: Step,
    start: Tensor,
    *,
    end: int,
    max_length: int = 100,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> list[Hypothesis]:
    """Sample tokens, for every row of `start`. Scores are log-probabilities of the model, before temperature and top-k.

    A `temperature` below 1 favours likely tokens. `top_k` keeps the k most likely tokens, `top_p` the fewest tokens
    with at least that total probability (always at least one).
    """
    temperature = finite_number("temperature", temperature, above=0.0)
    if top_k is not None:
        top_k = whole_number("top_k", top_k, 1)
    if top_p is not None and not 0 < finite_number("top_p", top_p) <= 1:
        raise BadValue(f"top_p: expected a probability above 0 and at most 1, got {top_p}.")
    prefixes, max_length = _checked_start(start, max_length)
    tokens: list[list[int]] = [[] for _ in range(len(prefixes))]
    totals = [0.0] * len(prefixes)
    alive = list(range(len(prefixes)))
    for _ in range(max_length):
        if not alive:
            break
        log_probabilities = _log_probabilities(step, prefixes, end)
        stuck = (log_probabilities.amax(-1) == -torch.inf).nonzero().flatten().tolist()
        if stuck:
            row = alive[stuck[0]]
            raise BadValue(
                f"step: cannot sample for row {row} of start, because all tokens have a log-probability of −inf after "
                f"{tokens[row]}. At least one token must stay possible until the end token {end}; beam_search avoids "
                f"such dead ends."
            )
        probabilities = _narrowed(log_probabilities / temperature, top_k, top_p).softmax(-1)
        drawn = torch.multinomial(probabilities.float(), 1, generator=generator)
        gained = log_probabilities.gather(1, drawn).flatten().tolist()
        for row, token, more in zip(alive, drawn.flatten().tolist(), gained, strict=True):
            tokens[row].append(token)
            totals[row] += more
        stay = [i for i, row in enumerate(alive) if tokens[row][-1] != end]
        prefixes = torch.cat([prefixes, drawn], 1)
        if len(stay) < len(alive):
            index = torch.tensor(stay, device=prefixes.device, dtype=torch.long)
            prefixes, alive = prefixes[index], [alive[i] for i in stay]
            if stay:
                _reorder(step, index)
    return [
        Hypothesis(generated, total / max(1, len(generated)), bool(generated) and generated[-1] == end)
        for generated, total in zip(tokens, totals, strict=True)
    ]


@dataclass
class _Entry:
    """The search for one row of `start`: its finished sequences, and its live prefixes in order of their token ids."""

    finished: list[Hypothesis]
    totals: list[float]  # log-probability of each live prefix
    dropped: bool = False  # whether a possible prefix was cut from the beam

    def is_short(self, count: int) -> bool:
        """Whether fewer than `count` sequences were found, and more may exist."""
        return self.dropped and len(self.finished) < count

    def best(self, count: int) -> list[Hypothesis]:
        return sorted(self.finished, key=lambda found: (-found.score, found.tokens))[:count]


@torch.no_grad()
def beam_search(
    step: Step,
    start: Tensor,
    *,
    end: int,
    beam: int = 5,
    max_length: int = 100,
    length_penalty: float = 1.0,
    n_best: int = 1,
) -> list[list[Hypothesis]]:
    """Return the best sequences for every row of `start`, best first; ties go to the lowest token ids.

    The score of a sequence is its log-probability divided by its length (including the end token) to the power of
    `length_penalty`. A finished sequence keeps its slot in the beam. The search ends when every slot is finished, at
    `max_length` tokens (unfinished sequences then count), or when no live prefix can still beat the n_best-th finished
    sequence at its best possible length.

    A prefix after which every token has a log-probability of −inf is a dead end. If dead ends leave fewer than `n_best`
    sequences although other prefixes were cut from the beam, those rows of `start` are searched again with a wider
    beam. A step with a cache (a `reorder` method) cannot start again; this is then an error.
    """
    beam, n_best = whole_number("beam", beam, 1), whole_number("n_best", n_best, 1)
    if n_best > beam:
        raise BadValue(f"n_best: expected at most beam={beam}, got {n_best}. Widen the beam.")
    alpha = finite_number("length_penalty", length_penalty)
    prefixes, max_length = _checked_start(start, max_length)
    if max_length == 0:
        return [[Hypothesis([], 0.0, finished=False)] for _ in range(len(prefixes))]
    entries = _searched(step, prefixes, end, beam, max_length, alpha, n_best)
    while short := [row for row, entry in enumerate(entries) if entry.is_short(n_best)]:
        if beam >= _WIDEST or hasattr(step, "reorder"):
            raise BadValue(
                f"beam: among the {beam} most likely prefixes for row {short[0]} of start, dead ends (all tokens have "
                f"a log-probability of −inf) leave fewer than n_best={n_best} sequences, and other prefixes were cut. "
                f"Widen the beam, or make the step avoid dead ends."
            )
        beam = min(2 * beam, _WIDEST)
        again = _searched(step, prefixes[short], end, beam, max_length, alpha, n_best)
        for row, entry in zip(short, again, strict=True):
            entries[row] = entry
    return [entry.best(n_best) for entry in entries]


def _searched(
    step: Step, prefixes: Tensor, end: int, beam: int, max_length: int, alpha: float, n_best: int
) -> list[_Entry]:
    """Search every row with a beam of this width."""
    if beam == 1:
        return _searched_greedily(step, prefixes, end, max_length, alpha)
    prompt_length = prefixes.shape[1]
    entries = [_Entry([], [0.0]) for _ in range(len(prefixes))]
    for length in range(1, max_length + 1):
        if not len(prefixes):
            break
        # On the host: choosing takes several small operations for each row of `start`, most of which wait for a device.
        log_probabilities = _log_probabilities(step, prefixes, end, on_host=True)
        origins: list[int] = []
        chosen: list[int] = []
        row = 0
        for entry in entries:
            alive = len(entry.totals)
            if not alive:
                continue
            totals = torch.tensor(entry.totals, dtype=torch.float64, device=log_probabilities.device)
            candidates = (log_probabilities[row : row + alive] + totals[:, None]).flatten()
            room = beam - len(entry.finished)
            picked = _largest(candidates, room)
            if not entry.dropped and len(picked) == room:
                entry.dropped = int((candidates > -torch.inf).sum()) > room
            values = candidates[picked].tolist()
            entry.totals = []
            for index, total in zip(picked.tolist(), values, strict=True):
                origin, token = row + index // log_probabilities.shape[1], index % log_probabilities.shape[1]
                if token == end or length == max_length:
                    tokens = [*prefixes[origin, prompt_length:].tolist(), token]
                    entry.finished.append(Hypothesis(tokens, total / length**alpha, token == end))
                else:
                    origins.append(origin)
                    chosen.append(token)
                    entry.totals.append(total)
            if _is_decided(entry, n_best, length, max_length, alpha):
                kept = len(origins) - len(entry.totals)
                origins, chosen, entry.totals = origins[:kept], chosen[:kept], []
            row += alive
        index = torch.tensor(origins, device=prefixes.device, dtype=torch.long)
        tokens_now = torch.tensor(chosen, device=prefixes.device, dtype=prefixes.dtype)
        if origins and (len(origins) != len(prefixes) or origins != list(range(len(prefixes)))):
            _reorder(step, index)
        prefixes = torch.cat([prefixes[index], tokens_now[:, None]], 1)
    return entries


def _searched_greedily(step: Step, prefixes: Tensor, end: int, max_length: int, alpha: float) -> list[_Entry]:
    """The same with a beam of one, in few operations for each step, however many rows there are."""
    entries = [_Entry([], []) for _ in range(len(prefixes))]
    written: list[list[int]] = [[] for _ in entries]
    alive, totals = list(range(len(entries))), torch.zeros(len(entries), dtype=torch.float64)
    for length in range(1, max_length + 1):
        if not alive:
            break
        candidates = _log_probabilities(step, prefixes, end, on_host=True) + totals[:, None]
        if not all(entries[row].dropped for row in alive):
            for row, count in zip(alive, (candidates > -torch.inf).sum(-1).tolist(), strict=True):
                entries[row].dropped |= count > 1
        totals, tokens = candidates.max(-1)  # the first of equal ones
        chosen, stay = tokens.tolist(), []
        for index, (row, token, total) in enumerate(zip(alive, chosen, totals.tolist(), strict=True)):
            if total == -math.inf:  # a dead end
                continue
            written[row].append(token)
            if token == end or length == max_length:
                score = total / length**alpha
                entries[row].finished.append(Hypothesis(written[row], score, token == end))
            else:
                stay.append(index)
        if len(stay) < len(alive):
            index_of_rows = torch.tensor(stay, dtype=torch.long)
            alive, totals, tokens = [alive[i] for i in stay], totals[index_of_rows], tokens[index_of_rows]
            prefixes = prefixes[index_of_rows.to(prefixes.device)]
            if stay:
                _reorder(step, index_of_rows.to(prefixes.device))
        prefixes = torch.cat([prefixes, tokens[:, None].to(prefixes.device)], 1)
    return entries


def _is_decided(entry: _Entry, n_best: int, length: int, max_length: int, alpha: float) -> bool:
    """Whether no live prefix can still enter the n best: log-probabilities only fall, so only length could help."""
    if len(entry.finished) < n_best or not entry.totals:
        return False
    bound = max(max(total / (length + 1) ** alpha, total / max_length**alpha) for total in entry.totals)
    return bool(bound < entry.best(n_best)[-1].score)


def _largest(candidates: Tensor, count: int) -> Tensor:
    """Return the indices of the `count` largest entries above −inf, ascending; ties go to the lowest indices."""
    count = min(count, len(candidates))
    if count == 0:
        return candidates.new_zeros(0, dtype=torch.long)
    if count == 1:  # greedy: argmax returns the first of equal entries as well
        best = candidates.argmax().view(1)
        return best[candidates[best] > -torch.inf]
    values = candidates.topk(count).values
    above = (candidates > values[-1]).nonzero().flatten()
    equal = (candidates == values[-1]).nonzero().flatten()[: count - len(above)]
    picked = torch.cat([above, equal]).sort().values
    return picked[candidates[picked] > -torch.inf]


def _narrowed(logits: Tensor, top_k: int | None, top_p: float | None) -> Tensor:
    """Set the logits that top-k and top-p leave out to −inf."""
    if top_k is not None and top_k < logits.shape[1]:
        values, index = logits.topk(top_k, -1)
        logits = torch.full_like(logits, -torch.inf).scatter(1, index, values)
    if top_p is not None and top_p < 1:
        ranked, order = logits.sort(dim=-1, descending=True, stable=True)
        probabilities = ranked.softmax(-1)
        beyond = probabilities.cumsum(-1) - probabilities >= top_p  # the higher ranks already reach top_p
        logits = logits.masked_fill(beyond.scatter(1, order, beyond), -torch.inf)
    return logits


def _checked_start(start: Tensor, max_length: int) -> tuple[Tensor, int]:
    if not isinstance(start, Tensor) or start.is_floating_point() or start.dtype == torch.bool:
        raise BadType(f"start: expected token ids of shape (b,t0), got {described(start)}.")
    if start.dim() != 2:
        raise BadValue(f"start: expected token ids of shape (b,t0), got shape {tuple(start.shape)}.")
    return start.long(), whole_number("max_length", max_length, 0)


def _log_probabilities(step: Step, prefixes: Tensor, end: int, *, on_host: bool = False) -> Tensor:
    """Call the step, check its result, and return it in float64."""
    log_probabilities = step(prefixes)
    if (
        not isinstance(log_probabilities, Tensor)
        or log_probabilities.dim() != 2
        or len(log_probabilities) != len(prefixes)
    ):
        raise BadValue(
            f"step: expected log-probabilities ({len(prefixes)}, vocab), got {described(log_probabilities)}."
        )
    if not 0 <= end < log_probabilities.shape[1]:
        raise BadValue(f"end: expected a token id from 0 to {log_probabilities.shape[1] - 1}, got {end}.")
    largest = float(log_probabilities.max()) if log_probabilities.numel() else 0.0  # NaN if any entry is
    if math.isnan(largest):
        raise BadValue("step: expected log-probabilities, got NaN.")
    if largest > _ROUNDING:
        raise BadValue(
            f"step: expected log-probabilities, which are at most 0, got {largest:.4g}. "
            f"Apply log_softmax to the logits."
        )
    return (log_probabilities.cpu() if on_host else log_probabilities).double().clamp(max=0.0)


def _reorder(step: Step, index: Tensor) -> None:
    move = getattr(step, "reorder", None)
    if move is not None:
        move(index)
