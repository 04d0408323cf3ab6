"""What an attack does and how large its budgets are, checked for what the attacked run reads."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from fractions import Fraction

from regard.errors import BadValue, unknown_name
from regard.support.arguments import finite_number, whole_number
from regard_workbench.attacks.ball import BALLS
from regard_workbench.attacks.target import PICTURES, TEXTS

METHODS = {PICTURES: ("pgd", "fgsm", "attention"), TEXTS: ("words", "attention")}  # the usual one first
EPS = (0.01, 0.03, 0.1)
WORDS = (1, 2, 3)
STARTS = ("random", "clean")
STEPS, OVERSHOOT = 40, 2.5  # pgd; `OVERSHOOT`·ε/steps is the usual step (Madry et al.)
NEAREST, COSINE = 16, 0.0
QUARTER = 4
# Settings that only some attacks read, with what reads them.
ONLY = {
    "norm": ("fgsm", "pgd", "attention on pictures"),
    "steps": ("pgd", "attention on pictures"),
    "step_size": ("pgd", "attention on pictures"),
    "restarts": ("pgd", "attention on pictures"),
    "start": ("pgd", "attention on pictures"),
    "places": ("attention on pictures",),
    "words": ("words", "attention on texts"),
    "nearest": ("words", "attention on texts"),
    "cosine": ("words", "attention on texts"),
}


@dataclass(frozen=True)
class AttackSettings:
    """An attack as it was asked for; None: the usual value."""

    method: str | None = None
    eps: tuple[float, ...] | None = None  # pictures: the largest change; texts: the share of words
    norm: str | None = None
    steps: int | None = None
    step_size: float | None = None
    restarts: int | None = None
    start: str | None = None
    places: int | None = None
    words: tuple[int, ...] | None = None
    nearest: int | None = None
    cosine: float | None = None
    seed: int = 0


@dataclass(frozen=True)
class Level:
    """One budget of a sweep: a distance (pictures), or words of a text, as a number or a share."""

    eps: float | None = None
    words: int | None = None

    def __str__(self) -> str:
        if self.words is not None:
            return "1 word" if self.words == 1 else f"{self.words} words"
        return f"{self.eps:g}"

    def limit(self, length: int) -> int:
        """How many words of a text of this length may be changed; a share is rounded down."""
        if self.words is not None:
            return self.words
        return math.floor(Fraction(repr(self.eps)) * length)  # as it was written: 0.29 of 100 words are 29


@dataclass(frozen=True)
class AttackPlan:
    """The settings of an attack in full."""

    kind: str
    method: str
    levels: tuple[Level, ...]
    norm: str
    steps: int
    step_size: float | None  # None: in proportion to ε
    restarts: int
    start: str
    places: int | None  # None: a quarter of the positions
    nearest: int
    cosine: float
    seed: int

    def step_of(self, eps: float) -> float:
        """The length of a step."""
        return OVERSHOOT * eps / self.steps if self.step_size is None else self.step_size

    def place_count(self, positions: int) -> int:
        """How many of the positions of a picture are attacked."""
        if self.places is None:
            return -(-positions // QUARTER)
        if self.places > positions:
            raise BadValue(f"places: this run reads {positions} positions, got {self.places}.")
        return self.places

    def described(self) -> dict[str, object]:
        """What matters for this method, by name, as plain data."""
        name = _named(self.method, self.kind)
        budget = {"eps": [level.eps for level in self.levels]} if self.levels[0].words is None else {}
        description: dict[str, object] = {"method": self.method, "kind": self.kind, **budget}
        for field in ONLY:
            if name in ONLY[field]:
                description[field] = (
                    [level.words for level in self.levels] if field == "words" else getattr(self, field)
                )
        if budget and "words" in description:
            del description["words"]
        return {**description, "seed": self.seed}


def planned(given: AttackSettings, kind: str) -> AttackPlan:
    """The plan of an attack on runs that read `kind`; what does not fit is refused."""
    methods = METHODS[kind]
    method = methods[0] if given.method is None else given.method
    method_names = sorted({name for every in METHODS.values() for name in every})
    if method not in method_names:
        raise unknown_name("method", method, method_names)
    if method not in methods:
        raise BadValue(f"method: this run reads {kind}, which {method!r} does not attack. Try {' or '.join(methods)}.")
    name = _named(method, kind)
    for field in fields(given):
        if field.name in ONLY and name not in ONLY[field.name] and getattr(given, field.name) is not None:
            raise BadValue(f"{field.name}: {name} does not use it; {' and '.join(ONLY[field.name])} do. Leave it out.")
    norm = "linf" if given.norm is None else given.norm
    start = "random" if given.start is None else given.start
    if norm not in BALLS:
        raise unknown_name("norm", norm, BALLS)
    if start not in STARTS:
        raise unknown_name("start", start, STARTS)
    steps, restarts = _count("steps", given.steps, STEPS), _count("restarts", given.restarts, 1)
    if start == "clean" and restarts > 1:
        raise BadValue(f"restarts: from the clean picture all {restarts} would be equal. Leave start or restarts out.")
    cosine = COSINE if given.cosine is None else finite_number("cosine", given.cosine)
    if not -1 <= cosine <= 1:
        raise BadValue(f"cosine: expected a number from -1 to 1, got {given.cosine}.")
    return AttackPlan(
        kind,
        method,
        _levels(given, kind),
        norm,
        steps,
        None if given.step_size is None else finite_number("step_size", given.step_size, above=0),
        restarts,
        start,
        None if given.places is None else whole_number("places", given.places, 1),
        _count("nearest", given.nearest, NEAREST),
        cosine,
        whole_number("seed", given.seed, 0),
    )


def _named(method: str, kind: str) -> str:
    return f"{method} on {kind}" if method == "attention" else method


def _count(argument: str, given: int | None, usual: int) -> int:
    return usual if given is None else whole_number(argument, given, 1)


def _levels(given: AttackSettings, kind: str) -> tuple[Level, ...]:
    """The budgets of the sweep, in the order given."""
    if given.eps is not None and given.words is not None:
        raise BadValue("eps, words: expected one of them: a share of the words of a text, or a number.")
    if given.words is not None or (kind == TEXTS and given.eps is None):
        words = WORDS if given.words is None else given.words
        return tuple(Level(words=whole_number("words", count, 1)) for count in words)
    levels = tuple(
        Level(eps=finite_number("eps", share, above=0)) for share in (EPS if given.eps is None else given.eps)
    )
    for level in levels:
        if kind == TEXTS and level.eps is not None and level.eps > 1:
            raise BadValue(f"eps: expected shares of the words up to 1, got {level.eps:g}. For a number: words.")
    if not levels:
        raise BadValue("eps: expected at least one number, got none.")
    return levels
