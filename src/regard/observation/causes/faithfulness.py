"""Does a map matter? What happens to the answer when the inputs that a map marks are removed, or kept alone.

    comprehensiveness = y(x) − y(x without the marked inputs)      large: the answer needed them
    sufficiency       = y(x) − y(the marked inputs alone)          small: the answer needs no more

y is the probability of the answer. The marked inputs are those with the largest weights, a tenth, a fifth and a half of
all by default, and the mean over these shares is reported. Removed inputs get a row without information in the place of
their embedding, so that positions stay.

The same is done with maps drawn at random. The p of a number is the share of maps (random ones and this one) that are
as good. A map should be good in both, so its own p is the share of maps whose worse rank of the two is as good as its
worse rank, corrected for the number of maps by Holm's procedure. A p above 0.05 does not show that a map is as good as
random: it was not shown to matter.

Paper: DeYoung et al. 2020, ERASER.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard.errors import BadValue
from regard.observation.ablation import logits_of
from regard.observation.causes.copies import model_call
from regard.observation.causes.erasure import Erasure
from regard.observation.causes.input_keys import described_keys, first_input_keys
from regard.observation.causes.input_rows import InputRows
from regard.observation.causes.maps import chosen_positions, grid_of, row_weights
from regard.observation.causes.measures import Answer, Measured, Words, check_classes, measure_of
from regard.observation.causes.rerun import Rerun
from regard.observation.seen import Seen
from regard.support.arguments import finite_number, whole_number
from regard.support.multiple_tests import holm

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHARES = (0.1, 0.2, 0.5)
INTERVAL = (0.025, 0.975)
ALPHA = 0.05
DRAWS = 200  # random maps, at least


@dataclass(frozen=True)
class Against:
    """A number of a map, and the same of maps drawn at random."""

    value: float
    random: float  # mean
    low: float  # between these two are 95 % of the random maps
    high: float
    p: float  # the share of random maps, and this one, that are as good

    @property
    def difference(self) -> tuple[float, float, float]:
        """Map minus random: mean, and where it lies for 95 % of the random maps."""
        return self.value - self.random, self.value - self.high, self.value - self.low


@dataclass(frozen=True)
class MapFaithfulness:
    """How far one map says what the answer was drawn from."""

    name: str  # of a site, or of what was given
    head: int | None  # None: the mean over heads
    comprehensiveness: Against
    sufficiency: Against
    p: float  # the share of random maps, and this one, that are as good in both
    p_holm: float  # corrected for the number of maps

    @property
    def matters(self) -> bool:
        """Whether it was shown that the map is better than random ones."""
        return self.p_holm <= ALPHA


@dataclass(frozen=True, eq=False)
class Faithfulness:
    """The faithfulness of every map, each compared with random maps."""

    maps: list[MapFaithfulness]
    measured: str
    value: float  # of the measure on the whole input
    shares: tuple[float, ...]
    draws: int

    def best(self, count: int = 8) -> list[MapFaithfulness]:
        """The maps whose marked inputs the answer needs most."""
        return sorted(self.maps, key=lambda one: -one.comprehensiveness.value)[:count]

    def to_json(self) -> dict[str, Any]:
        """Everything as plain data."""
        return {
            "kind": "faithfulness",
            "measured": self.measured,
            "value": self.value,
            "shares": list(self.shares),
            "draws": self.draws,
            "maps": [
                {
                    "name": judged.name,
                    "head": judged.head,
                    "matters": judged.matters,
                    "p": judged.p,
                    "p_holm": judged.p_holm,
                    "comprehensiveness": vars(judged.comprehensiveness),
                    "sufficiency": vars(judged.sufficiency),
                }
                for judged in self.maps
            ],
        }

    def plot(self, **options: Any) -> Figure:
        """The maps beside the interval of random ones (`causes.input_figures.plot_faithfulness`)."""
        from regard.observation.causes.input_figures import plot_faithfulness

        return plot_faithfulness(self, **options)

    def __repr__(self) -> str:
        lines = [f"<{self.measured}: {self.value:.4f}; {len(self.maps)} maps, {self.draws} random ones"]
        for judged in self.best():
            head = "" if judged.head is None else f" head {judged.head}"
            full, alone = judged.comprehensiveness, judged.sufficiency
            verdict = "matters" if judged.matters else "not shown to matter"
            lines.append(
                f"  {judged.name}{head}: comprehensiveness {full.value:.3f} (random {full.low:.3f} to {full.high:.3f}, "
                f"p = {full.p:.3f}), sufficiency {alone.value:.3f} (random {alone.low:.3f} to {alone.high:.3f}, "
                f"p = {alone.p:.3f}): {verdict} (p = {judged.p_holm:.3f} after Holm's correction)"
            )
        return "\n".join(lines) + ">"


@torch.no_grad()
def faithfulness(
    seen: Seen,
    inputs: Any = None,
    *,
    sites: Sequence[str] | None = None,
    heads: bool = False,
    scores: Mapping[str, Tensor] | None = None,
    measure: Measured = "probability",
    answer: Answer = None,
    position: int = -1,
    words: Words | None = None,
    shares: Sequence[float] = SHARES,
    keep: Sequence[int] = (),
    baseline: str | int | Tensor = "mean",
    draws: int | None = None,
    seed: int = 0,
    example: int = 0,
) -> Faithfulness:
    """Comprehensiveness and sufficiency of maps, against random ones.

    Args:
        seen: what was observed: its maps are judged.
        inputs: what the model is called with; None: what was observed.
        sites: whose maps, by name; all whose keys are the inputs by default.
        heads: judge each head on its own, instead of the mean over heads.
        scores: further scores of the inputs, by name: {"integrated gradients": (positions,)}.
        measure: what should change: "probability", "logit", or a function of the model's output that gives a number.
        answer: a class or token; by default what the model says.
        position: of the answer, for models that answer at every position: its row of a map is judged.
        words: turns the number of a class or token into text, such as `tokenizer.decode`.
        shares: of the inputs that are marked.
        keep: positions that are never removed, such as those of special tokens; negative from the end.
        baseline: what takes the place of a removed input: "mean" (of the example's rows), "zero", a token, a tensor.
        draws: the number of random maps; by default 200, or 20 for each map that is judged, if these are more: with
            fewer no p could be below 0.05 after the correction.
        seed: of the random maps.
        example: which example of the batch.
    """
    model = Rerun(seen).model
    check_classes(model, measure, answer)
    call = model_call("inputs", inputs, seen).example(example)
    entering = InputRows(model, call)
    plain = model(*call.args, **call.kwargs)
    judged = measure_of(measure, answer, None, position, plain, words=words)
    row = position if _answers_everywhere(plain) else None
    grid = None if entering.picture is None else grid_of(seen, entering.picture)
    length = entering.positions if grid is None else grid[0] * grid[1]
    free = sorted(set(range(length)) - {_within("keep", index, length) for index in keep})
    counts = [max(1, round(_share(share) * len(free))) for share in shares]
    if not counts or not free:
        raise BadValue("shares: expected at least one share and one input that may be removed.")
    input_maps = _maps(seen, sites, heads, scores, first_input_keys(entering, length, grid), length, row, example)
    draws = max(DRAWS, math.ceil(len(input_maps) / ALPHA)) if draws is None else whole_number("draws", draws, 2)
    generator = torch.Generator().manual_seed(seed)
    rankings = [_ranking(scored, free) for _, _, scored in input_maps]
    rankings += [torch.tensor(free)[torch.randperm(len(free), generator=generator)] for _ in range(draws)]
    erased = Erasure(entering, entering.baseline(baseline), grid)
    value = float(judged.each(plain, 1, 1))
    removed = torch.stack([_marked(order[:count], length) for order in rankings for count in counts])
    alone = ~removed
    alone[:, sorted(set(range(length)) - set(free))] = False
    numbers = torch.stack(
        [value - erased.measured(masks, judged).view(len(rankings), len(counts)).mean(1) for masks in (removed, alone)]
    )  # (2, maps + draws)
    first = len(input_maps)
    comprehensive, sufficient = (
        [_against(value, row[first:], sign) for value in row[:first]]
        for row, sign in zip(numbers, (1, -1), strict=True)
    )
    both = [_p_of_both(numbers[:, at], numbers[:, first:]) for at in range(first)]
    corrected = holm(both)
    maps = [
        MapFaithfulness(name, head, comprehensive[at], sufficient[at], both[at], corrected[at])
        for at, (name, head, _) in enumerate(input_maps)
    ]
    return Faithfulness(maps, judged.words, value, tuple(float(share) for share in shares), draws)


def _maps(
    seen: Seen,
    sites: Sequence[str] | None,
    heads: bool,
    scores: Mapping[str, Tensor] | None,
    firsts: Mapping[str, int],
    length: int,
    row: int | None,
    example: int,
) -> list[tuple[str, int | None, Tensor]]:
    """Names, heads and scores of the inputs, of every map that is judged."""
    maps: list[tuple[str, int | None, Tensor]] = []
    for name in (site for site in seen.names() if site in firsts) if sites is None else sites:
        weights = seen[name].weights()[example]
        if name not in firsts:
            raise BadValue(
                f"sites: the {weights.shape[-1]} keys of {name} are not the {length} inputs: replacing an input moves "
                "other keys, or none. Choose other sites, or give scores of your own."
            )
        if heads:
            maps += [
                (name, head, row_weights(head_weights, firsts[name], length, row))
                for head, head_weights in enumerate(weights)
            ]
        else:
            maps.append((name, None, row_weights(weights.mean(0), firsts[name], length, row)))
    for name, numbers in (scores or {}).items():
        if numbers.shape != (length,):
            raise BadValue(f"scores: expected {length} numbers for {name!r}, got {tuple(numbers.shape)}.")
        maps.append((name, None, numbers.abs().double().cpu()))
    if not maps:
        raise BadValue(
            f"sites: there is no site whose keys are the {length} inputs ({described_keys(seen)}). Give scores of your "
            "own."
        )
    return maps


def _ranking(scores: Tensor, free: list[int]) -> Tensor:
    return torch.tensor(free)[chosen_positions(scores[free].nan_to_num(-math.inf), len(free))]


def _marked(positions: Tensor, length: int) -> Tensor:
    marked = torch.zeros(length, dtype=torch.bool)
    marked[positions] = True
    return marked


def _against(value: Tensor, random: Tensor, sign: int) -> Against:
    low, high = torch.quantile(random, torch.tensor(INTERVAL, dtype=random.dtype)).tolist()
    as_good = int((sign * random >= sign * value).sum())
    return Against(float(value), float(random.mean()), low, high, (1 + as_good) / (1 + len(random)))


def _p_of_both(values: Tensor, random: Tensor) -> float:
    """The share of maps, this one among them, that are as good by the worse of their two ranks (2, maps)."""
    pool = torch.cat([values[:, None], random], 1) * torch.tensor([[-1.0], [1.0]], dtype=random.dtype)
    ranks = [torch.searchsorted(row.sort().values, row, right=True) for row in pool]  # 1 for the best
    worse = torch.maximum(*ranks)
    return float((worse <= worse[0]).double().mean())


def _answers_everywhere(output: Any) -> bool:
    try:
        return logits_of(output).dim() == 3
    except BadValue:
        return False


def _within(argument: str, given: int, length: int) -> int:
    number = whole_number(argument, given)
    if not -length <= number < length:
        raise BadValue(f"{argument}: expected numbers from {-length} to {length - 1}, got {number}.")
    return number % length


def _share(given: float) -> float:
    share = finite_number("shares", given, above=0)
    if share >= 1:
        raise BadValue(f"shares: expected shares between 0 and 1, got {given}.")
    return share
