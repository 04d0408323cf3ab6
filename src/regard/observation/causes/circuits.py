"""Heads by name, from what they do: previous-token, duplicate-token and induction heads.

A head gets a name only if three things agree:

1. **Attention**: its weights follow the pattern (`analysis.patterns`), score from 0 to 1.
2. **Influence**: its output does. One token after the other is replaced, and the influence of token p on the head's
   output at position q is how far that output moves. The same pattern must hold of this map, which uses no weights.
3. **Effect**: without the head (its output replaced by its mean) the model does worse at the behaviour the head should
   serve. On random tokens that are repeated that is the loss of the repetition, which a model can only lower by looking
   back; the change is given with a 95 % interval over examples. Models that predict no tokens are measured by how far
   their output moves.

Which heads are needed is only half of a circuit; `patched` says how much of the loss each head restores on its own, in
a run whose first half is other tokens.

Paper: Olsson et al. 2022, in-context learning and induction heads; Wang et al. 2023 (duplicate-token heads).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.errors import BadType, BadValue
from regard.observation.ablation import logits_of
from regard.observation.analysis.patterns import recognise
from regard.observation.capture.storage import Storage
from regard.observation.causes.copies import ModelCall
from regard.observation.causes.influence import Scores, call_with, influence_scores, mean_scores
from regard.observation.causes.measures import Measure
from regard.observation.causes.patching import CopiedHeads, RunPair, patch_grid, site_patches
from regard.observation.causes.rerun import Rerun, RunRecording
from regard.observation.causes.sweep import SiteChange, Sweep
from regard.observation.observer import Observer
from regard.observation.seen import Seen
from regard.support.arguments import described, whole_number

NAMES = ("induction", "previous token", "duplicate token")
# The least scores of attention and influence. The output of an induction head depends as much on the token that it
# looks for as on the one it finds, so its influence is shared.
LEAST = {"induction": (0.3, 0.1), "previous token": (0.3, 0.2), "duplicate token": (0.2, 0.1)}


@dataclass(frozen=True)
class NamedHead:
    """A head, the name it earned ("" for none), and the numbers that decide."""

    site: str
    head: int
    name: str
    attention: dict[str, float]  # by name
    influence: dict[str, float]
    effect: tuple[float, float, float]  # change of the measure without the head: mean, and a 95 % interval
    patched: float | None  # share of the measure that the head restores alone; None where it was not measured

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**vars(self), "effect": list(self.effect)}


@dataclass(frozen=True, eq=False)
class Circuits:
    """Every head of a model, those with a name first."""

    heads: list[NamedHead]
    measured: str
    value: float  # of the measure, without changes

    def named(self, name: str | None = None) -> list[NamedHead]:
        """The heads with a name, or with this one, the largest effect first."""
        return [head for head in self.heads if head.name and name in (None, head.name)]

    def to_json(self) -> dict[str, Any]:
        """Everything as plain data."""
        heads = [head.to_json() for head in self.heads]
        return {"kind": "circuits", "measured": self.measured, "value": self.value, "heads": heads}

    def __repr__(self) -> str:
        lines = [f"<{len(self.named())} of {len(self.heads)} heads have a name; {self.measured} {self.value:.4f}"]
        for head in self.named():
            mean, low, high = head.effect
            alone = "" if head.patched is None else f", alone restores {head.patched:+.1%}"
            lines.append(
                f"  {head.site} head {head.head}: {head.name}, attention {head.attention[head.name]:.2f}, influence "
                f"{head.influence[head.name]:.2f}, without it {mean:+.4f} ({low:+.4f} to {high:+.4f}){alone}"
            )
        return "\n".join(lines) + ">"


@torch.no_grad()
def find_circuits(
    seen: Seen,
    *,
    vocabulary: Sequence[int] | int,
    texts: Tensor | None = None,
    prefix: Sequence[int] = (),
    suffix: Sequence[int] = (),
    length: int = 16,
    examples: int = 8,
    seed: int = 0,
) -> Circuits:
    """Find heads by what they do on random tokens that are repeated, or on texts.

    Args:
        seen: what was observed of the model, called with ids (b,n), by name or as its first argument.
        vocabulary: the ids to draw from, or their number.
        texts: ids (b,n) to look at in the place of random tokens; then the measure is the loss of all their tokens.
        prefix: ids before the tokens, such as a start token.
        suffix: ids after them, such as a separator.
        length: tokens before the repetition.
        examples: how many texts.
        seed: of the tokens.
    """
    rerun = Rerun(seen)
    length, examples = whole_number("length", length, 4), whole_number("examples", examples, 2)
    generator = torch.Generator().manual_seed(whole_number("seed", seed))
    if texts is None:
        drawn = _drawn(_ids(vocabulary), 2 * length + 1, examples, generator)
        clean = _text(prefix, drawn[:, :length], drawn[:, :length], suffix)
        corrupted = _text(prefix, drawn[:, length : 2 * length], drawn[:, :length], suffix)
        unrelated, span, start = drawn[:, -1], (len(prefix), len(prefix) + 2 * length), len(prefix) + length
    else:
        if texts.dim() != 2 or len(texts) < 2 or texts.shape[1] < 4 or texts.is_floating_point():
            raise BadValue(f"texts: expected ids (b,n) of at least two texts, got {described(texts)}.")
        clean, unrelated = texts.cpu(), _absent(_ids(vocabulary), texts.cpu(), generator)
        span, start, length = (0, texts.shape[1]), 0, texts.shape[1]
    call = call_with(seen, clean)
    plain = rerun.run(call)
    measured, numbers, predicts = _behaviour(plain, clean, start, length)
    attention = _attention_scores(seen, call, clean)
    influence = influence_scores(rerun, seen, clean, unrelated, span)
    effects = _effects(rerun, call, numbers, relative=not predicts)
    restored = _restored(seen, call, call_with(seen, corrupted), numbers) if predicts and texts is None else {}
    heads = []
    for place, effect in effects.items():
        looks, moves = (_kept(scores.get(place, {})) for scores in (attention, influence))
        heads.append(NamedHead(*place, _name(looks, moves, effect), looks, moves, effect, restored.get(place)))
    heads.sort(key=lambda one: (not one.name, -abs(one.effect[0])))
    return Circuits(heads, measured, float(numbers(plain).mean()))


def _kept(scores: dict[str, float]) -> dict[str, float]:
    return {name: scores.get(name, 0.0) for name in NAMES}


def _name(looks: dict[str, float], moves: dict[str, float], effect: tuple[float, float, float]) -> str:
    """The pattern that weights and outputs share, if the model needs the head: the interval lies above zero."""
    if not effect[1] > 0:
        return ""
    fitting = [name for name in NAMES if looks[name] >= LEAST[name][0] and moves[name] >= LEAST[name][1]]
    return max(fitting, key=lambda name: looks[name], default="")


def _behaviour(output: Any, ids: Tensor, start: int, length: int) -> tuple[str, Callable[[Any], Tensor], bool]:
    """What is measured, a number of it for each example of an output, and whether the model predicts tokens."""
    try:
        logits: Tensor | None = logits_of(output)
    except BadValue:
        logits = None
    if logits is not None and logits.dim() == 3 and logits.shape[1:2] == ids.shape[1:] and logits.shape[2] > ids.max():
        words = "loss of the repeated tokens" if start else "loss of the texts"
        return words, lambda out: _losses(out, ids, start, length), True
    before = _rows(output)
    sizes = before.flatten(1).norm(dim=1).clamp(min=1e-30)
    return (
        "relative change of the output, beyond that of the median head",
        lambda out: (_rows(out) - before).flatten(1).norm(dim=1) / sizes,
        False,
    )


def _losses(output: Any, ids: Tensor, start: int, length: int) -> Tensor:
    """The mean loss of the repeated tokens of each example, without the first, which nothing announces."""
    logits = logits_of(output)[:, start : start + length - 1].double().cpu()
    shares = logits.log_softmax(-1).gather(-1, ids[:, start + 1 : start + length, None])
    losses: Tensor = -shares[..., 0].mean(1)
    return losses


def _rows(output: Any) -> Tensor:
    hidden = getattr(output, "last_hidden_state", None)
    hidden = hidden if isinstance(hidden, Tensor) else output if isinstance(output, Tensor) else output[0]
    rows: Tensor = hidden.detach().double().cpu()
    return rows


def _attention_scores(seen: Seen, call: ModelCall, ids: Tensor) -> Scores:
    assert seen.model is not None
    with Observer(seen.model, Storage(), None, False) as watched:
        seen.model(*call.args, **call.kwargs)
    scores: dict[tuple[str, int], list[dict[str, float]]] = {}
    for name in watched.names():
        if watched[name].shape()[2:] == (ids.shape[1], ids.shape[1]):
            for example in range(len(ids)):
                for head in recognise(watched[name], ids[example], batch=example):
                    scores.setdefault((name, head.head), []).append(head.scores)
    return mean_scores(scores)


def _effects(
    rerun: Rerun, call: ModelCall, numbers: Callable[[Any], Tensor], relative: bool
) -> dict[tuple[str, int], tuple[float, float, float]]:
    """The change of the measure without each head: its output is its mean over examples and positions.

    `relative`: minus the change without the median head, for measures that every change raises.
    """
    kept = RunRecording()
    before = numbers(rerun.run(call, kept))
    means = {name: values.mean((0, 2), keepdim=True).expand_as(values) for name, values in kept.values.items()}
    places = [(name, head) for name, values in kept.values.items() for head in range(values.shape[1])]
    changes = torch.stack(
        [numbers(rerun.run(call, CopiedHeads(means, [SiteChange(*place)], 1))) - before for place in places]
    )  # (heads, examples)
    if relative:
        changes = changes - changes.median(0, keepdim=True).values
    return {place: _interval(row) for place, row in zip(places, changes, strict=True)}


def _interval(values: Tensor) -> tuple[float, float, float]:
    """The mean, and its 95 % interval by Student's t."""
    from scipy.stats import t

    mean, error = float(values.mean()), float(values.std()) / math.sqrt(len(values))
    wide = float(t.ppf(0.975, len(values) - 1)) * error
    return mean, mean - wide, mean + wide


def _restored(
    seen: Seen, call: ModelCall, corrupted: ModelCall, numbers: Callable[[Any], Tensor]
) -> dict[tuple[str, int], float]:
    """How much of the loss each head makes up for alone, where the first half was other tokens."""
    pair = RunPair(seen, call.kwargs or call.args, corrupted.kwargs or corrupted.args)
    sweep = Sweep(pair.rerun, pair.call, Measure("loss", lambda output: float(numbers(output).mean())))
    table = patch_grid(pair, sweep, site_patches(pair.donor.values), "heads", None, None, None)
    return {
        (name, head): float(value)
        for name, row in zip(table.names, table.recovered, strict=True)
        for head, value in enumerate(row)
        if torch.isfinite(value)
    }


def _drawn(words: Tensor, count: int, examples: int, generator: torch.Generator) -> Tensor:
    """(examples, count) ids, all different within an example."""
    if len(words) < count:
        raise BadValue(f"vocabulary: expected at least {count} ids, all different, got {len(words)}.")
    return torch.stack([words[torch.randperm(len(words), generator=generator)[:count]] for _ in range(examples)])


def _absent(words: Tensor, texts: Tensor, generator: torch.Generator) -> Tensor:
    """For each text an id that it does not hold."""
    absent = [_drawn(words[~torch.isin(words, text)], 1, 1, generator)[0, 0] for text in texts]
    return torch.stack(absent)


def _text(prefix: Sequence[int], first: Tensor, second: Tensor, suffix: Sequence[int]) -> Tensor:
    edges = [torch.tensor(list(ids), dtype=torch.long).expand(len(first), -1) for ids in (prefix, suffix)]
    return torch.cat([edges[0], first, second, edges[1]], 1)


def _ids(vocabulary: Sequence[int] | int) -> Tensor:
    if isinstance(vocabulary, int):
        return torch.arange(vocabulary)
    try:
        return torch.tensor(sorted({whole_number("vocabulary", token, 0) for token in vocabulary}), dtype=torch.long)
    except TypeError:
        raise BadType(f"vocabulary: expected ids or their number, got {described(vocabulary)}.") from None
