"""`--match`: widths at which the contestants of a comparison have the same number of parameters or operations.

The width of a model is the option that its class names as `width_option`. The size of the reference, the first
contestant whose width the user wrote, else the first one, is the goal; a width that the user did not write may change,
too, where no others fit it. The others take widths near it, so that the largest contestant is at most 5 % larger than
the smallest. Among such widths, multiples of 8 are preferred (then of 4,
of 2): kernels are fastest there, and a comparison of speed must not depend on an odd width.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import torch

from regard.errors import BadValue, RegardError
from regard.registry import parse
from regard_workbench.comparison import flops
from regard_workbench.comparison.job import Contestant, Settings
from regard_workbench.comparison.search_space import spelled
from regard_workbench.models.parts.model import MODELS, Model, options_of
from regard_workbench.tasks.parts.task import Task
from regard_workbench.training.build import build_model, build_task
from regard_workbench.training.config import refuse
from regard_workbench.training.config.recipe import complete, model_for
from regard_workbench.training.data import TrainingData

PARAMETERS, FLOPS, NONE = "parameters", "flops", "none"
MATCHES = (PARAMETERS, FLOPS, NONE)
WORDS = {PARAMETERS: "parameters", FLOPS: "FLOPs per step"}
WITHIN = 0.05  # the largest contestant exceeds the smallest by at most this share
WIDEST = 1 << 16
_ROUND = 8
_LARGEST = 1 << 29  # parameters of a model that is built to count its operations
_BATCHES = 8  # whose operations are averaged, the first of a run


@dataclass(frozen=True)
class Match:
    """The chosen widths, by a contestant's label."""

    by: str  # "parameters" or "flops"
    models: dict[str, str]  # the model as it is built: "lstm-attention(dim=232)"
    widths: dict[str, int]
    sizes: dict[str, float]  # parameters, or operations of a step

    @property
    def spread(self) -> float:
        """By which share the largest contestant exceeds the smallest."""
        return spread(self.sizes)


def spread(sizes: Mapping[str, float]) -> float:
    """By which share the largest size exceeds the smallest."""
    return max(sizes.values()) / min(sizes.values()) - 1 if sizes else 0.0


@dataclass(frozen=True)
class Sized:
    """A width and the size of the model that has it."""

    width: int
    size: float

    @property
    def roundness(self) -> int:
        """The largest power of two, at most 8, that divides the width."""
        return math.gcd(self.width, _ROUND)


def match(settings: Settings, contestants: list[Contestant], by: str) -> Match:
    """Widths for the contestants at which they agree in `by`; raises where a model has no width, or none fits."""
    _refuse_models_without_width(contestants, str(settings["task"]))
    task = build_task(complete(settings))
    varied = {contestant.label: _Varied(settings, task, contestant, by) for contestant in contestants}
    reference = next((family for family in varied.values() if family.fixed), next(iter(varied.values())))
    first = reference.size(reference.width)
    if first is None:
        raise BadValue(f"match: {reference.label} cannot be built, so it has no size to match. Leave it out.")
    for goal in reference.goals():
        near = {
            label: [goal] if family is reference else list(family.near(goal.size)) for label, family in varied.items()
        }
        chosen = choose(near, goal.size)
        if chosen is not None:
            break
    else:
        near = {label: list(family.near(first)) for label, family in varied.items()}
        raise BadValue(_too_far(near, first, by))
    return Match(
        by,
        {label: varied[label].model(sized.width) for label, sized in chosen.items()},
        {label: sized.width for label, sized in chosen.items()},
        {label: sized.size for label, sized in chosen.items()},
    )


def choose(near: Mapping[str, list[Sized]], goal: float) -> dict[str, Sized] | None:
    """One candidate of each, all within 5 % of each other: the roundest widths, then the sizes nearest to the goal.

    None where there is no such choice. Every possible smallest size is tried as the lower end.
    """
    best: tuple[tuple[float, float], dict[str, Sized]] | None = None
    for low in sorted({sized.size for candidates in near.values() for sized in candidates}):
        chosen = {}
        for label, candidates in near.items():
            inside = [sized for sized in candidates if low <= sized.size <= low * (1 + WITHIN)]
            if not inside:
                break
            chosen[label] = min(inside, key=lambda one: (-one.roundness, abs(math.log(one.size / goal))))
        else:
            selection = chosen.values()
            rank = (
                -sum(math.log2(sized.roundness) for sized in selection),
                max(abs(math.log(sized.size / goal)) for sized in selection),
            )
            if best is None or rank < best[0]:
                best = rank, chosen
    return None if best is None else best[1]


class _Varied:
    """A contestant at different widths."""

    def __init__(self, settings: Settings, task: Task, contestant: Contestant, by: str) -> None:
        self.settings, self.task, self.label = settings, task, contestant.label
        self.attention = {} if contestant.attention is None else {"attention": contestant.attention}
        self.name, self.options = parse(model_for(contestant.model, str(settings["task"])))
        cls = MODELS[self.name]
        self.option = cls.width_option
        self.fixed = self.option in parse(contestant.model)[1]  # the user wrote it
        self.width: int = self.options.get(self.option, options_of(cls)[self.option].default)
        self.size: Callable[[int], float | None] = cache(self._parameters if by == PARAMETERS else self._operations)

    def model(self, width: int) -> str:
        """The model with this width, as `regard train` takes it."""
        return spelled(self.name, {**self.options, self.option: width})

    def goals(self) -> Iterator[Sized]:
        """What others may be matched to: this contestant at its own width, then, where the user wrote none, at others
        up to a quarter narrower or wider, the nearest first. With many contestants, not every size suits them all.
        """
        further = range(_ROUND, self.width // 4 + 1, _ROUND)
        return self._sized(
            [self.width, *(() if self.fixed else (self.width + way * step for step in further for way in (1, -1)))]
        )

    def near(self, goal: float) -> Iterable[Sized]:
        """The widths at which the size is within 5 % of the goal; where there is none, the nearest on each side."""
        steps = range(2, 2 * self.width + 2, 2)  # even: a model that halves its width rounds at odd ones
        grain = next((step for step in steps if self.size(self.width + step) is not None), None)
        if self.fixed or grain is None:
            return self._sized([self.width])
        low, high = self._around(goal, grain)
        lower = itertools.takewhile(lambda one: one.size * (1 + WITHIN) >= goal, self._sized(range(low, 0, -grain)))
        upper = itertools.takewhile(
            lambda one: one.size <= goal * (1 + WITHIN), self._sized(range(high, WIDEST, grain))
        )
        return [*lower, *upper] or self._sized([low, high])

    def _around(self, goal: float, grain: int) -> tuple[int, int]:
        """Two neighbouring widths whose sizes enclose the goal; a size grows with the width."""

        def reaches(width: int) -> bool:
            size = self.size(width)
            return size is not None and size > goal

        low, high = self.width % grain or grain, self.width + grain
        while not reaches(high) and high < WIDEST:
            low, high = (high, high + high // grain * grain)  # in steps of the grain, as all widths that can be built
        while high - low > grain:
            middle = low + (high - low) // (2 * grain) * grain
            low, high = (low, middle) if reaches(middle) else (middle, high)
        return low, high

    def _sized(self, widths: Iterable[int]) -> Iterator[Sized]:
        return (Sized(width, size) for width in widths if (size := self.size(width)) is not None)

    def _built(self, width: int) -> Model:
        return build_model(complete({**self.settings, **self.attention, "model": self.model(width)}), self.task)

    def _parameters(self, width: int) -> float | None:
        """The number of parameters; None where no model has this width."""
        with torch.random.fork_rng(devices=[]):
            for device in ("meta", "cpu"):  # on the meta device nothing is allocated, but not every model can be built
                try:
                    with torch.device(device):
                        model = self._built(width)
                except RegardError:
                    return None
                except Exception:  # a model of the user may raise anything at a width that it cannot have
                    continue
                return float(sum(parameter.numel() for parameter in model.parameters()))
        return None

    def _operations(self, width: int) -> float | None:
        """Operations of a training step, the mean over the first batches of a run; None where none can be counted."""
        parameters = self._parameters(width)
        if parameters is None or parameters > _LARGEST:
            return None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            try:
                model = self._built(width)
                config = complete({**self.settings, **self.attention, "model": self.model(width)})
                data = TrainingData(self.task, model, config)
                return flops.mean_of_steps(model, [data.batch(index) for index in range(_BATCHES)])
            except Exception:  # as above
                return None


def _refuse_models_without_width(contestants: Iterable[Contestant], task: str) -> None:
    mistakes = []
    for contestant in contestants:
        name, options = parse(model_for(contestant.model, task))
        option, declared = MODELS[name].width_option, options_of(MODELS[name])
        if option in declared and isinstance(options.get(option, declared[option].default), int):
            continue
        why = f"it has no option `{option}`" if option else "it names no option that sets its width"
        if option in declared:
            why = f"its option `{option}` has no integer to begin with"
        mistakes.append(
            f"match: {name} has no width to vary: {why}. Leave it out, use --match none, or name the option as "
            "`width_option` of its class."
        )
    refuse(list(dict.fromkeys(mistakes)))


def _too_far(near: Mapping[str, list[Sized]], goal: float, by: str) -> str:
    """Which contestants have no width that fits, and how near they get."""
    lines = []
    for label, candidates in near.items():
        nearest = min(candidates, key=lambda one: abs(math.log(one.size / goal)), default=None)
        size_text = "cannot be built" if nearest is None else f"{nearest.size:,.0f} with width {nearest.width}"
        lines.append(f"{label}: {size_text}")
    first = (
        f"match: no widths bring all contestants within {100 * WITHIN:.0f} % in {WORDS[by]}. The nearest to "
        f"{goal:,.0f}:"
    )
    last = "Leave out the widths that you wrote, put a larger model first, or use --match none."
    return "\n  ".join([first, *lines, last])
