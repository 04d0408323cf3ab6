"""What a model is: a network built for a problem, by name. One file with `@model("name", gives=…)` adds one.

`models.build("decoder", problem, dim=128, layers=4, attention="local(window=65)")`. A model reads the streams of a
`Batch` into rows; `problem.answer.head(dim)`, which it keeps as `head`, turns rows into the answer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from torch import Tensor, nn

from regard import registry
from regard.decoding import Hypothesis
from regard.errors import BadValue
from regard.nn import fast_path
from regard.nn.fast_path import Loss
from regard.nn.parts.mechanism import MECHANISMS
from regard.registry import Registry, parse
from regard.support.arguments import finite_number, whole_number
from regard.support.options import read_options
from regard_workbench.models.parts.embedding import embedder_of
from regard_workbench.models.parts.preset import Preset, with_preset
from regard_workbench.tasks.answers import NEEDS, Head
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.shown import Shown
from regard_workbench.tasks.parts.streams import Tokens, Vectors

if TYPE_CHECKING:
    from regard_workbench.models.pretrained.loading import Pretrained

MODELS: Registry[type[Model]] = Registry("model", "regard_workbench.models")
ModelClass = TypeVar("ModelClass", bound="type[Model]")


def model(
    name: str,
    *,
    gives: tuple[str, ...],
    reads: tuple[type[Any], ...] | None = (Tokens, Vectors),
    several_streams: bool = False,
) -> Callable[[ModelClass], ModelClass]:
    """Register the decorated class under `name`.

    gives: what answers may need of it: "pooled", "rows", "past", "decoder" (`regard_workbench.tasks.answers.answer`)
    reads: the sorts of streams it takes; None: all that can be embedded
    several_streams: whether it reads more than one
    """
    unknown = [need for need in gives if need not in NEEDS]
    if unknown:
        raise BadValue(f"gives: expected some of {', '.join(NEEDS)}, got {unknown[0]!r}.")

    def register(cls: ModelClass) -> ModelClass:
        cls.name, cls.gives, cls.reads, cls.several_streams = name, gives, reads, several_streams
        MODELS.add(name, cls)
        return cls

    return register


class Model(nn.Module):
    """The base of every model."""

    name: ClassVar[str] = ""
    gives: ClassVar[tuple[str, ...]] = ()
    reads: ClassVar[tuple[type[Any], ...] | None] = ()
    several_streams: ClassVar[bool] = False
    takes_attention: ClassVar[str] = ""  # what `attention=` replaces, in words; empty: the option is refused
    attention_default: ClassVar[str] = ""  # its default mechanism, by name
    width_option: ClassVar[str] = "dim"  # the option that sets its width, which `regard compare --match` varies
    # The attention that reports and `predict` show, most telling first: the path of a module (`layers.-1`: the last
    # one) and what it is, in words with {name} for its mechanism. A model with a decoder begins with the decoder's
    # attention to the input. Empty: the last layer that attended.
    shows: ClassVar[dict[str, str]] = {}
    # Of those whose rows and columns are not the positions of the first stream: what they are, by the names of
    # `Shown` (its `called`, or one of its `streams`) or by the number of the stream.
    sides: Mapping[str, tuple[str | int, str | int]] = MappingProxyType({})
    shares_sequences: ClassVar[bool] = False  # positions meet in attention only: `--context-parallel` may share them
    presets: ClassVar[Mapping[str, Preset]] = {}  # by the names that the option `preset` takes

    head: Head
    built_as: tuple[str, dict[str, Any]] | None = None  # the name and options that `build` was given
    # The context that training wraps `forward` in, for a fast path that computes a loss without calling it.
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
    pretrained: Pretrained | None = None  # the checkpoint of the Hub's form that it was loaded from

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.problem = problem

    @classmethod
    def refuses(cls, problem: Problem) -> str:
        """Why a model cannot be built for a problem whose streams and answer it takes one by one; empty if it can."""
        return ""

    def forward(self, batch: Batch) -> Any:
        """The outputs of the head."""
        raise NotImplementedError(f"{type(self).__name__} does not define forward")

    def adopted(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The weights of another run's model (`--init-from`) by the names they have here."""
        return weights

    def loss(self, outputs: Any, batch: Batch, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        """The sum of the losses of all that counts in a batch, in nats, and how much counts."""
        return self.head.loss(outputs, batch, smoothing)

    def loss_of(self, batch: Batch, smoothing: float = 0.0, seed: Tensor | None = None) -> Loss:
        """The loss of a batch: `loss` of what the model says about it, unless a fast path computes both in one.

        `seed`: of dropout, for a fast path that takes one; an integer tensor (1,) on the device of the batch.
        """
        fast = fast_path.loss(self, batch, smoothing, seed)
        return Loss(*self.loss(self(batch), batch, smoothing)) if fast is None else fast

    def with_rows(self, batch: Batch) -> tuple[Any, Tensor]:
        """The outputs of the head, and the rows that it made them from."""
        head_inputs: list[Tensor] = []
        handle = self.head.register_forward_pre_hook(lambda head, arguments: head_inputs.append(arguments[0]))
        try:
            outputs = self(batch)
        finally:
            handle.remove()
        return outputs, head_inputs[-1]

    def example_losses(self, outputs: Any, batch: Batch, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        """The loss of each example and how much counts in it, both (b,) or, where only these are known, sums (1,)."""
        return self.head.example_losses(outputs, batch, smoothing)

    def predict(self, outputs: Any, batch: Batch) -> list[Any]:
        """What the outputs say, for each example."""
        return self.head.predict(outputs, batch)

    def relabel(self, shown: Shown) -> Shown:
        """Names of the positions it attends over, where it merges positions of the input (into patches)."""
        return shown

    def attention_to_source(self, batch: Batch) -> dict[str, Tensor]:
        """With what weights each target position attends to each input position, by layer: (b,h,t,n) each."""
        from regard_workbench.models.parts.crossing import attention_to_source

        return attention_to_source(self, batch)

    def generate(self, batch: Batch, **options: Any) -> list[list[Hypothesis]]:
        """Hypotheses for each example, best first, for answers that are sequences."""
        raise BadValue(f"model: {self.name} writes no sequences.")


def names() -> list[str]:
    """Every model by name, in alphabetical order."""
    return sorted(MODELS.names())


def fits(cls: type[Model], problem: Problem) -> bool:
    """Whether a model can read the streams of a problem and give what its answer needs."""
    return not _misfit(cls, problem)


def _misfit(cls: type[Model], problem: Problem) -> str:
    """Why a model cannot be built for a problem; empty if it can."""
    for spec in problem.streams.values():
        if embedder_of(spec) is None if cls.reads is None else not isinstance(spec, cls.reads):
            return f"does not read {spec.words}"
    if len(problem.streams) > 1 and not cls.several_streams:
        return f"reads one stream, not {len(problem.streams)}"
    answer = problem.answer
    return cls.refuses(problem) if answer.needs in cls.gives else f"cannot answer with {answer.words}"


def problem_for(name: str, problems: list[Problem]) -> Problem:
    """The first of a task's problems that the model `name` can be built for."""
    cls = MODELS[parse(name)[0]]
    for problem in problems:
        if fits(cls, problem):
            return problem
    able = [candidate for candidate in names() if any(fits(MODELS[candidate], problem) for problem in problems)]
    reasons = " and ".join(dict.fromkeys(_misfit(cls, problem) for problem in problems))
    raise BadValue(f"model: {cls.name} {reasons}, which this task asks for. These can: {', '.join(able)}.")


def build(name: str, problem: Problem, **options: Any) -> Model:
    """The model called `name` for a problem; options may stand in the name: `decoder(layers=4, dim=128)`."""
    plain, inside = parse(name)
    cls = MODELS[plain]
    problem_for(plain, [problem])
    chosen = {**inside, **{key: value for key, value in options.items() if value is not None}}
    declared = options_of(cls)
    if "attention" in chosen and not cls.takes_attention:
        raise BadValue(f"attention: {plain} has no place for another attention; leave --attention out.")
    _refuse_of_attention(cls, chosen, declared)
    read = read_options(plain, cls, chosen, declared)
    _check_sizes(read)
    built = cls(problem, **with_preset(plain, cls.presets, read)[1])
    built.built_as = plain, read
    if weight := getattr(problem.answer, "guide", 0.0):
        from regard_workbench.models.parts.crossing import Guide

        built.add_module("guide", Guide(built, weight))
    return built


def _check_sizes(options: Mapping[str, Any]) -> None:
    """Refuse a width or a probability that no model has, before torch does in its own words."""
    for option, setting in options.items():
        if option == "dim":
            whole_number(option, setting, 1)
        elif option.endswith("dropout") and setting is not None and not 0 <= finite_number(option, setting) <= 1:
            raise BadValue(f"{option}: expected a probability from 0 to 1, got {setting}.")


def _refuse_of_attention(cls: type[Model], given: Mapping[str, Any], known: Container[str]) -> None:
    """Say where an option goes that the model does not have, but the mechanism inside it has."""
    name = str(given.get("attention") or cls.attention_default)
    names = registry.split(name)
    if not cls.takes_attention or len(names) != 1 or name.partition("(")[0] not in MECHANISMS:
        return
    plain, inside = parse(name)
    offered = registry.options_of(MECHANISMS[plain].layer, leading=0)
    for option, value in given.items():
        if option not in known and option in offered:
            chosen = ", ".join(f"{key}={setting}" for key, setting in {**inside, option: value}.items())
            raise BadValue(
                f'{option}: {cls.name} does not have this option, its attention has: --attention "{plain}({chosen})".'
            )


def preset_settings(name: str, warmup: int | None = None) -> dict[str, Any]:
    """The optimiser settings of the preset in a model's name; `warmup`: the steps asked for, None: the preset's."""
    plain, inside = parse(name)
    cls = MODELS[plain]
    preset, options = with_preset(plain, cls.presets, inside)
    return {} if preset is None else preset.settings(options, warmup)


def options_of(cls: type[Model]) -> dict[str, inspect.Parameter]:
    """The options of a model by name."""
    options = registry.options_of(cls, leading=1)  # the problem
    if cls.presets:
        kind = inspect.Parameter.KEYWORD_ONLY
        options["preset"] = inspect.Parameter("preset", kind, default=None, annotation="str | None")
    return options
