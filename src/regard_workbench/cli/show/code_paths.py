"""Which code computes a layer on this machine: the plan of each call of `attend`, or the layer's own code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from regard.dispatch import attention as dispatch
from regard.errors import Unsupported
from regard.nn.parts.attention import Attention
from regard.nn.parts.mechanism import Mechanism
from regard_workbench.cli.show.toy import POSITIONS, accepted

_ORDER = ("yes", "by name", "no")


@dataclass(frozen=True)
class Support:
    """Whether an implementation supports a call."""

    impl: str
    can: str  # "yes": auto takes it; "by name": only with impl=…; "no"
    reason: str


@dataclass(frozen=True)
class CodePath:
    """A part of a layer and the code that computes it."""

    part: str  # path of the sub-layer, empty for the layer itself
    mechanism: str  # the name of its mechanism
    code: str  # the code path, in words
    answers: list[Support] = field(
        default_factory=list
    )  # the choice of auto first, then supported ones, then the others


@dataclass
class _Call:
    part: str
    layer: Mechanism
    positional: tuple[Any, ...]
    named: dict[str, Any]


def of_layer(layer: Mechanism) -> list[CodePath]:
    """The code paths of a layer on this machine, for a short input with gradients enabled."""
    calls = _calls(layer)
    own_code = f"{type(layer).__name__}'s own code in plain torch"
    paths: list[CodePath] = []
    if not any(call.part == "" for call in calls) or not isinstance(layer, Attention):
        around = f"{own_code}; attend is not called" if not calls else f"{own_code}, around these calls of attend:"
        paths.append(CodePath("", layer.entry.name, around))
    for call in calls:
        run = _planned(call)
        if run not in paths:
            paths.append(run)
    return paths


def _calls(layer: Mechanism) -> list[_Call]:
    """Every call of `attend` while the layer runs once, with the sub-layer that made it."""
    calls: list[_Call] = []
    inside: list[tuple[str, Mechanism]] = []
    hooks = []
    for path, module in layer.named_modules():
        if isinstance(module, Mechanism):
            hooks.append(module.register_forward_pre_hook(_entering(inside, path, module)))
            hooks.append(module.register_forward_hook(lambda *_: _leave(inside), always_call=True))
    try:
        with _recorded(lambda *args, **kwargs: calls.append(_Call(*inside[-1], args, kwargs))):
            accepted(layer, torch.zeros(1, POSITIONS, layer.dim, requires_grad=True))
    finally:
        for hook in hooks:
            hook.remove()
    return calls


@contextmanager
def _recorded(record: Callable[..., None]) -> Iterator[None]:
    """Inside, `record` is called with the arguments of each call of `attend`. Layers look it up in its module."""
    attend = dispatch.attend

    def recording(*args: Any, **kwargs: Any) -> Any:
        record(*args, **kwargs)
        return attend(*args, **kwargs)

    dispatch.attend = recording
    try:
        yield
    finally:
        dispatch.attend = attend


def _entering(inside: list[tuple[str, Mechanism]], path: str, module: Mechanism) -> Callable[..., None]:
    return lambda *_: inside.append((path, module))


def _leave(inside: list[tuple[str, Mechanism]]) -> None:
    inside.pop()


def _planned(call: _Call) -> CodePath:
    plan = dispatch.explain(*call.positional, **call.named)
    answers = [Support(plan.impl, "yes", plan.reason)]
    for impl, why in plan.rejected.items():
        try:
            dispatch.explain(*call.positional, **{**call.named, "impl": impl})
            answers.append(Support(impl, "by name", why))
        except Unsupported:
            answers.append(Support(impl, "no", why))
    answers.sort(key=lambda answer: _ORDER.index(answer.can))
    name = call.layer.entry.name if hasattr(call.layer, "entry") else type(call.layer).__name__
    wanted = ", with its log-sum-exp" if call.named.get("return_logsumexp") else ""
    return CodePath(call.part, name, f"attend, through {plan.impl}{wanted}", answers)
