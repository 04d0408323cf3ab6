"""Direct logit attribution: how much each head, each layer's other parts and the embedding wrote into the answer.

The rows that a model answers from are a sum of what its parts wrote: x = embedding + Σ heads + Σ feed-forward layers.
If the scale of every normalisation is held as it was, and every gate of the vocabulary head, then a logit is linear in
x plus a constant, and so it is a sum:

    logit = Σ parts + bias

Each part is computed by running the model on it alone: all other writes are zero, and the scales are those of the
plain run. The bias is the run in which every write is zero. A branch that is not linear even then, such as a mixture of
experts, is one write of its layer. `gap` is what is left of the logit: rounding, or what the stream of rows itself goes
through that is not linear. The first module that does so is named in `unfrozen`.

Source: Elhage et al. 2021, a mathematical framework for transformer circuits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard.errors import BadValue, Unsupported
from regard.observation.ablation import logits_of
from regard.observation.causes.copies import model_call
from regard.observation.causes.measures import at_position
from regard.observation.causes.rerun import Rerun
from regard.observation.causes.result import plain_numbers
from regard.observation.causes.writes import ModelWrites, Shares, WritingPart
from regard.observation.seen import Seen
from regard.support.arguments import whole_number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NUMBERS = 1 << 26  # logits in one batch


@dataclass(frozen=True, eq=False)
class Contributions:
    """What each part wrote into the logits of one answer."""

    sites: list[str]
    heads: Tensor  # (sites, heads): into the answer; NaN where a site has fewer heads
    others: dict[str, float]  # the embedding, and what each layer wrote beside its heads
    bias: float  # biases, and what else does not depend on the parts
    logit: float  # of the answer, or its difference to the other's
    gap: float  # logit − Σ parts − bias
    measured: str
    says: Tensor = field(repr=False)  # (sites, heads, classes): what each head alone adds to every logit
    words: Callable[[int], str] = str
    # Norms whose scale could not be held, and the first module that bends the sum of the parts.
    unfrozen: tuple[str, ...] = ()

    def top(self, site: str, head: int, count: int = 5) -> list[tuple[str, float]]:
        """The classes or tokens that a head writes most of."""
        row = self.says[self.sites.index(site), head]
        values, ids = row.topk(min(count, len(row)))
        return [(self.words(token), value) for token, value in zip(ids.tolist(), values.tolist(), strict=True)]

    def best(self, count: int = 8) -> list[dict[str, Any]]:
        """The heads that wrote most into the answer, for or against it."""
        flat = self.heads.flatten().nan_to_num(0.0)
        order = flat.abs().argsort(descending=True, stable=True)[:count].tolist()
        width = self.heads.shape[1]
        return [{"site": self.sites[at // width], "head": at % width, "value": float(flat[at])} for at in order]

    def to_json(self) -> dict[str, Any]:
        """Everything but the whole vocabulary as plain data."""
        written = [
            [None if row.isnan().any() else self.top(site, head) for head, row in enumerate(self.says[at])]
            for at, site in enumerate(self.sites)
        ]
        return {
            "kind": "contributions",
            "sites": self.sites,
            "heads": plain_numbers(self.heads),
            "others": self.others,
            "bias": self.bias,
            "logit": self.logit,
            "gap": self.gap,
            "measured": self.measured,
            "says": written,
            "unfrozen": list(self.unfrozen),
        }

    def plot(self, **options: Any) -> Figure:
        """Heads and other parts as a heat map (`causes.figures.plot_contributions`)."""
        from regard.observation.causes.figures import plot_contributions

        return plot_contributions(self, **options)

    def __repr__(self) -> str:
        lines = [f"<{self.measured}: {self.logit:.4f} = parts + bias {self.bias:.4f} + gap {self.gap:.1e}"]
        lines += [f"  {head['site']} head {head['head']}: {head['value']:+.4f}" for head in self.best(5)]
        lines += [f"  {name}: {value:+.4f}" for name, value in self.others.items()]
        lines += [f"  not held: {name}" for name in self.unfrozen]
        return "\n".join(lines) + ">"


@torch.no_grad()
def contributions(
    seen: Seen,
    inputs: Any = None,
    *,
    answer: int | None = None,
    other: int | None = None,
    position: int = -1,
    words: Callable[[int], str] | None = None,
    example: int = 0,
) -> Contributions:
    """How much each head and each other part wrote into the logit of an answer.

    Args:
        seen: what was observed of the model.
        inputs: what the model is called with; None: what was observed.
        answer: a class or token; by default what the model says.
        other: a class or token whose logit is subtracted.
        position: of the answer, for models that answer at every position.
        words: turns the number of a class or token into text, such as `tokenizer.decode`.
        example: which example of the batch.
    """
    rerun = Rerun(seen)
    call = model_call("inputs", inputs, seen).example(example)
    writes = ModelWrites(rerun)
    logits = at_position(logits_of(writes.record(call)), position)[0].double().cpu()
    if not writes.values:
        raise Unsupported("sites: no head of this model can be changed on its own. Use seen.lens or seen.patch.")
    right = int(logits.argmax()) if answer is None else _class("answer", answer, len(logits))
    wrong = None if other is None else _class("other", other, len(logits))
    writers = writes.parts()
    per_batch = max(1, min(128, NUMBERS // max(1, writes.logit_count)))
    rows = []
    copies: list[Shares] = [{}, *({writer: 1.0} for writer in writers)]
    for start in range(0, len(copies), per_batch):
        output = writes.run(call, copies[start : start + per_batch])
        rows.append(at_position(logits_of(output), position).double().cpu())
    table = torch.cat(rows)  # (1 + parts, classes); the first is the run without any part
    silent, alone = table[0], table[1:] - table[0]

    def number(row: Tensor) -> float:
        return float(row[right]) - (0.0 if wrong is None else float(row[wrong]))

    return _arranged(writes, writers, alone, silent, logits, number, _told(right, wrong, words), words or str)


def _arranged(
    writes: ModelWrites,
    parts: Sequence[WritingPart],
    alone: Tensor,
    silent: Tensor,
    logits: Tensor,
    number: Callable[[Tensor], float],
    told: str,
    words: Callable[[int], str],
) -> Contributions:
    sites = list(dict.fromkeys(writer.place for writer in parts if writer.head is not None))
    width = max(writer.head for writer in parts if writer.head is not None) + 1
    heads = torch.full((len(sites), width), torch.nan, dtype=torch.float64)
    says = torch.full((len(sites), width, alone.shape[1]), torch.nan)
    beside_heads: dict[str, float] = {}
    for writer, row in zip(parts, alone, strict=True):
        if writer.head is None:
            beside_heads[writer.place] = number(row)
        else:
            heads[sites.index(writer.place), writer.head] = number(row)
            says[sites.index(writer.place), writer.head] = row.float()
    if not bool(heads.nan_to_num().any()):
        raise Unsupported("sites: what the heads of this model give does not reach the answer by a direct way.")
    gap = number(logits - silent - alone.sum(0))
    return Contributions(
        sites, heads, beside_heads, number(silent), number(logits), gap, told, says, words, tuple(writes.unfrozen)
    )


def _told(right: int, wrong: int | None, words: Callable[[int], str] | None) -> str:
    name = str if words is None else (lambda one: f"“{words(one)}”")
    return f"logit of {name(right)}" + ("" if wrong is None else f" − logit of {name(wrong)}")


def _class(argument: str, given: int, classes: int) -> int:
    number = whole_number(argument, given, 0)
    if number >= classes:
        raise BadValue(f"{argument}: expected a number below {classes}, got {number}.")
    return number
