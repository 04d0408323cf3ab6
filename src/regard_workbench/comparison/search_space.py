"""The search space of tuning: settings, each with a range or a few values, as a user writes them.

    optim.lr=1e-4..1e-2:log, optim.weight_decay=0|0.01|0.1, optim.warmup=0..200, model.dropout=0..0.5

`model.dropout` is an option of the model and goes into the brackets of its name: `decoder(layers=4, dropout=0.1)`.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from regard.errors import BadValue, RegardError
from regard.registry import parse, split
from regard.support.options import read_options
from regard_workbench.comparison.job import Settings
from regard_workbench.models.parts.model import MODELS, options_of
from regard_workbench.models.parts.preset import with_preset
from regard_workbench.training import config as known
from regard_workbench.training.config import Config

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

MODEL = "model."
# Settings that may differ between contestants. All others are rules of the comparison, the same for all.
TUNABLE = ("optim.", "batch_size", "accumulate", "bucket")
FORM = "NAME=LOW..HIGH, NAME=LOW..HIGH:log or NAME=A|B|C"
_RANGE = re.compile(r"(.+?)\.\.(.+?)(:log)?")
_WHOLE = re.compile(r"[+-]?\d+")


@dataclass(frozen=True)
class Range:
    """All numbers, or all integers, between two ends."""

    name: str
    low: float
    high: float
    log: bool = False  # uniform on a logarithmic scale
    whole: bool = False

    def __str__(self) -> str:
        """As the user writes it."""
        return f"{self.low:g}..{self.high:g}" + (":log" if self.log else "")

    def distribution(self) -> BaseDistribution:
        """The distribution in Optuna."""
        from optuna.distributions import FloatDistribution, IntDistribution

        if self.whole:
            return IntDistribution(int(self.low), int(self.high), log=self.log)
        return FloatDistribution(self.low, self.high, log=self.log)

    def setting(self, drawn: Any) -> Any:
        """The setting for a drawn value, with three significant digits, so that commands stay short."""
        if self.whole:
            return int(drawn)
        return min(max(float(f"{drawn:.3g}"), self.low), self.high)

    def drawn(self, value: Any) -> Any:
        """The value that would have to be drawn for this setting; None if it lies outside."""
        inside = isinstance(value, (int, float)) and self.low <= value <= self.high
        return value if inside and (not self.whole or value == int(value)) else None


@dataclass(frozen=True)
class Categorical:
    """One of a few values, drawn by their text: Optuna accepts no tuples, for instance."""

    name: str
    values: dict[str, Any]

    def __str__(self) -> str:
        """As the user writes it."""
        return "|".join(self.values)

    def distribution(self) -> BaseDistribution:
        """The distribution in Optuna."""
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(tuple(self.values))

    def setting(self, drawn: Any) -> Any:
        """The setting for a drawn text."""
        return self.values[drawn]

    def drawn(self, value: Any) -> Any:
        """What would have to be drawn for this setting; None if it is not among them."""
        return next((word for word, choice in self.values.items() if choice == value), None)


Space = tuple[Range | Categorical, ...]


def default_space(config: Config) -> Space:
    """The space where none is given: around the recipe, whose own settings lie inside."""
    optim = config.optim
    assert optim.lr is not None and optim.warmup is not None and optim.weight_decay is not None
    longest = max(optim.warmup, (config.steps or 0) // 5)
    decays = {f"{decay:g}": decay for decay in sorted({0.0, 0.01, 0.1, optim.weight_decay})}
    dimensions: list[Range | Categorical] = [Categorical("optim.weight_decay", decays)]
    if optim.lr:
        dimensions.insert(0, Range("optim.lr", optim.lr / 10, optim.lr * 10, log=True))
    if longest:
        dimensions.append(Range("optim.warmup", 0, longest, whole=True))
    return tuple(dimensions)


def read(text: str, config: Config) -> Space:
    """The space that a user wrote, for the model of `config`; all mistakes are reported at once."""
    dimensions: dict[str, Range | Categorical] = {}
    mistakes: list[str] = []
    for spelling in split(text):
        try:
            dimension = _dimension(spelling, config)
        except RegardError as mistake:
            mistakes.append(f"space: {mistake}")
            continue
        if dimension.name in dimensions:
            mistakes.append(f"space: {dimension.name} appears twice.")
        dimensions[dimension.name] = dimension
    if not dimensions and not mistakes:
        mistakes.append(f"space: expected {FORM}, joined by commas, got {text!r}.")
    known.refuse(mistakes)
    return tuple(dimensions.values())


def own(space: Space, config: Config) -> dict[str, Any] | None:
    """The settings of `config` as if they had been drawn; None if one of them lies outside the space."""
    values = known.flat(dataclasses.asdict(config))
    name, inside = parse(config.model)
    inside = read_options(name, MODELS[name], inside, options_of(MODELS[name]))
    _, inside = with_preset(name, MODELS[name].presets, inside)
    for name, option in _options(config).items():
        values[MODEL + name] = inside.get(name, option.default)
    drawn = {dimension.name: dimension.drawn(values[dimension.name]) for dimension in space}
    return None if None in drawn.values() else drawn


def settings(chosen: Mapping[str, Any], config: Config) -> Settings:
    """Chosen values as settings of `train`: options of the model go into its name."""
    plain = {name: value for name, value in chosen.items() if not name.startswith(MODEL)}
    options = {name.removeprefix(MODEL): value for name, value in chosen.items() if name.startswith(MODEL)}
    if options:
        name, inside = parse(config.model)
        plain["model"] = spelled(name, {**inside, **options})
    return plain


def spelled(name: str, options: Mapping[str, Any]) -> str:
    """A name with options as `registry.parse` reads it: `spelled(*parse(text))` means the same as `text`."""
    inside = ", ".join(f"{option}={_word(value)}" for option, value in options.items())
    return f"{name}({inside})" if inside else name


def _word(value: Any) -> str:
    """The value of an option; a text without quotes where that is read back as the same text."""
    if isinstance(value, str):
        try:
            if parse(f"x(v={value})")[1] == {"v": value}:
                return value
        except RegardError:
            pass
    return repr(value)


def _dimension(part: str, config: Config) -> Range | Categorical:
    name, equals, ends = (piece.strip() for piece in part.partition("="))
    name = name.replace("-", "_")
    between = _RANGE.fullmatch(ends)
    if not name or not equals or (between is None and "|" not in ends):
        raise BadValue(f"expected {FORM}, got {part.strip()!r}.")
    if between is None:
        words = [word.strip() for word in ends.split("|") if word.strip()]
        return Categorical(name, {word: _read(name, word, config) for word in words})
    low, high = (_number(name, word, config) for word in between.groups()[:2])
    if low >= high:
        raise BadValue(f"{name}: expected the lower end first, got {ends!r}.")
    if between[3] and low <= 0:
        raise BadValue(f"{name}: a logarithmic range begins above 0, got {ends!r}.")
    return Range(name, low, high, between[3] is not None, _is_whole(name, between, low, high, config))


def _number(name: str, word: str, config: Config) -> float:
    value = _read(name, word, config)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise BadValue(f"{name}: expected a number on both sides of .., got {word!r}.")
    return value


def _read(name: str, word: str, config: Config) -> Any:
    """A value, converted to the type of the setting or of the model's option."""
    if name.startswith(MODEL):
        model, option = parse(config.model)[0], name.removeprefix(MODEL)
        value = parse(f"x(v={word})")[1]["v"]
        return read_options(model, MODELS[model], {option: value}, _options(config))[option]
    clean, mistakes = known.read({name: word})
    known.refuse(mistakes)
    if not name.startswith(TUNABLE):
        raise BadValue(
            f"{name} is a rule of the comparison, the same for all. To tune: optim.…, model.OPTION, "
            f"{', '.join(TUNABLE[1:])}."
        )
    return clean[name]


def _is_whole(name: str, between: re.Match[str], low: float, high: float, config: Config) -> bool:
    """Whether only integers are allowed: by the setting's type, or by both ends and the option's default."""
    if name.startswith(MODEL):
        default = _options(config)[name.removeprefix(MODEL)].default
        written = all(_WHOLE.fullmatch(end.strip()) for end in between.groups()[:2])
        return written and not isinstance(default, float)
    _, refused = known.read({name: low + (high - low) / math.pi})  # between the ends, and never an integer
    return bool(refused)


def _options(config: Config) -> dict[str, Any]:
    """The options of the model that can be tuned; its attention and preset are part of the contestant."""
    options = options_of(MODELS[parse(config.model)[0]])
    return {name: option for name, option in options.items() if name not in ("attention", "preset")}
