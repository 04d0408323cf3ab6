"""Ablation: the model runs again with some heads silenced, and a loss or logit is compared.

The output of a silenced head is zero before the output projection. The model takes the same path as before, with all
other heads unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.errors import BadValue, Unsupported
from regard.observation.capture.storage import Storage
from regard.observation.observer import Observer
from regard.observation.seen import Seen
from regard.support.arguments import described

Heads = Mapping[str, Sequence[int]] | Sequence[tuple[str, int]]
Measure = Callable[[Any], Any]


@dataclass(frozen=True)
class Ablation:
    """The effect of silencing some heads."""

    heads: tuple[tuple[str, int], ...]
    before: float
    after: float
    measured: str  # what was measured: "loss", "logit (0, 3, 17)"

    @property
    def change(self) -> float:
        """After minus before: the heads mattered if a loss rises or a logit falls."""
        return self.after - self.before

    def __repr__(self) -> str:
        names = ", ".join(f"{site} head {head}" for site, head in self.heads)
        return f"<without {names}: {self.measured} {self.before:.4f} → {self.after:.4f} ({self.change:+.4f})>"


def ablate(
    seen: Seen,
    heads: Heads | None = None,
    *,
    loss: Measure | None = None,
    logit: int | tuple[int, ...] | None = None,
    run: Callable[[], Any] | None = None,
) -> Ablation | list[Ablation]:
    """Silence heads together; or, without `heads`, each head on its own, the one with the largest effect first.

    Args:
        seen: what was observed; its model is run again on the inputs of its last forward pass.
        heads: {site: [head, …]} or [(site, head), …].
        loss: turns the model's output into a number. By default the output's own `loss`, if it has one.
        logit: instead of a loss, which logit to follow: a whole index, or the number of a class or token (then that of
            the first example, at its last position).
        run: runs the model, where its last forward pass cannot be repeated as it was.
    """
    measure, words = _measure(loss, logit)
    run = run or _again(seen)
    with torch.no_grad():
        before = _number(measure(_quietly(seen, {}, run)), words)
        if heads is not None:
            chosen = checked_heads(seen, heads)
            after = _number(measure(_quietly(seen, chosen, run)), words)
            return Ablation(_listed(chosen), before, after, words)
        ablations = []
        for name in seen.names():
            for head in range(seen[name].shape()[1]):
                after = _number(measure(_quietly(seen, {name: [head]}, run)), words)
                ablations.append(Ablation(((name, head),), before, after, words))
    return sorted(ablations, key=lambda one: -abs(one.change))


def _quietly(seen: Seen, heads: Mapping[str, Sequence[int]], run: Callable[[], Any]) -> Any:
    """Run the model with silenced heads, without changing the state of random number generators."""
    observer = Observer(seen.model, Storage(), 1, False)
    observer.silence, observer.expected = heads, seen.names()
    with torch.random.fork_rng(), observer as met:
        try:
            result = run()
        except NotImplementedError as why:
            raise Unsupported(f"heads: {why} Choose heads of other sites.") from why
    missing = [name for name in heads if name not in met]
    if missing:
        raise BadValue(f"heads: the model did not attend at {', '.join(missing)} when it was run again.")
    return result


def _again(seen: Seen) -> Callable[[], Any]:
    if seen.model is None or seen.inputs is None:
        raise BadValue("run: no forward pass of a model was observed; pass run=lambda: model(…).")
    model, (args, kwargs) = seen.model, seen.inputs
    if kwargs.get("past_key_values") is not None:
        raise BadValue(
            "run: the last forward pass was a decoding step, whose cache has changed since. Observe the model on the "
            "whole text, or pass run=lambda: model(…)."
        )
    return lambda: model(*args, **kwargs)


def checked_heads(seen: Seen, heads: Heads, argument: str = "heads") -> dict[str, list[int]]:
    """Heads by site, each from 0; wrong ones are refused in the name of an argument."""
    heads_by_site: dict[str, list[int]] = {}
    pairs = [(site, head) for site, many in heads.items() for head in many] if isinstance(heads, Mapping) else heads
    for site, head in pairs:
        count = seen[site].shape()[1]
        if not -count <= head < count:
            raise BadValue(
                f"{argument}: {site} has {count} heads; expected a number from 0 to {count - 1}, got {head}."
            )
        heads_by_site.setdefault(site, []).append(head % count)
    if not heads_by_site:
        raise BadValue(f"{argument}: expected at least one head; leave it out to try each head on its own.")
    return heads_by_site


def _listed(heads: Mapping[str, Sequence[int]]) -> tuple[tuple[str, int], ...]:
    return tuple((site, head) for site, many in heads.items() for head in many)


def _measure(loss: Measure | None, logit: int | tuple[int, ...] | None) -> tuple[Measure, str]:
    if loss is not None and logit is not None:
        raise BadValue("loss: expected a loss or a logit, got both.")
    if loss is not None:
        return loss, "loss"
    if logit is None:
        return _own_loss, "loss"
    if isinstance(logit, int):
        return lambda output: _at(output, (0, *(-1,) * (logits_of(output).dim() - 2), logit)), f"logit {logit}"
    return lambda output: _at(output, logit), f"logit {logit}"


def _own_loss(output: Any) -> Any:
    own_loss = getattr(output, "loss", None)
    if own_loss is None:
        raise BadValue(
            "loss: the model's output has no loss of its own. Pass loss=lambda output: …, or logit= the number of a "
            "class or token."
        )
    return own_loss


def logits_of(output: Any) -> Tensor:
    """The logits of a model's output: a tensor, `.logits`, or the first element of a tuple."""
    for candidate in (
        output,
        getattr(output, "logits", None),
        output[0] if isinstance(output, tuple) and output else None,
    ):
        if isinstance(candidate, Tensor):
            return candidate
    raise BadValue(
        f"logit: there are no logits in the model's output, {described(output)}. Pass loss=lambda output: …."
    )


def _at(output: Any, index: tuple[int, ...]) -> Tensor:
    logits = logits_of(output)
    try:
        logit = logits[index]
    except IndexError:
        raise BadValue(f"logit: expected an index into logits of {tuple(logits.shape)}, got {index}.") from None
    if logit.dim():
        raise BadValue(f"logit: expected {logits.dim()} numbers for logits of {tuple(logits.shape)}, got {index}.")
    return logit


def _number(found: Any, words: str) -> float:
    if isinstance(found, Tensor) and found.numel() != 1:
        raise BadValue(f"loss: expected one number, got {described(found)}.")
    return float(found)
