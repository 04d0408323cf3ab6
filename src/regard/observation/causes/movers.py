"""Name movers: heads that look at a token earlier in the text and write it as the answer.

A head is one if three things agree, on a pair of texts whose answers differ:

1. **Direct effect**: its output from the clean run, put into the corrupted one, moves the answer along the direct path
   alone (`paths`), by at least `LEAST` of what the two runs differ by.
2. **Attention**: from the answer's position it looks at the answer's token more than at an average token.
3. **Copying**: what it writes into the logits of the clean run favours the answer (`contributions`).

Paper: Wang et al. 2023, interpretability in the wild: the name movers of GPT-2's indirect-object circuit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.errors import BadValue
from regard.observation.capture.storage import Storage
from regard.observation.causes.contributions import contributions
from regard.observation.causes.copies import model_call, tensors_in
from regard.observation.causes.measures import Words
from regard.observation.causes.paths import patch_paths
from regard.observation.observer import Observer
from regard.observation.seen import Seen
from regard.support.arguments import whole_number

LEAST = 0.05  # of the effect of the whole pair, by the direct path


@dataclass(frozen=True)
class MoverHead:
    """How far one head moves the answer's token."""

    site: str
    head: int
    direct: float  # share of the effect by the direct path
    attention: float  # weight on the answer's token, from the answer's position
    chance: float  # the same for an average token
    written: float  # into the difference of the two answers' logits, in the clean run

    @property
    def moves(self) -> bool:
        """Whether all three agree."""
        return self.direct >= LEAST and self.attention > self.chance and self.written > 0

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**vars(self), "moves": self.moves}


def name_movers(
    seen: Seen, clean: Any, corrupted: Any, *, answer: int, other: int, position: int = -1, words: Words | None = None
) -> list[MoverHead]:
    """Every head with its direct effect, its attention to the answer's token and what it writes, the strongest first.

    Args:
        seen: what was observed of the model.
        clean: what the model is called with, one text of ids; None: what was observed. It holds the answer's token.
        corrupted: a text of as many tokens with another answer.
        answer: the token that `clean` asks for.
        other: the token that `corrupted` asks for.
        position: of the answer.
        words: turns the number of a token into text, for messages.
    """
    call = model_call("clean", clean, seen)
    ids = call.kwargs.get("input_ids", next(tensors_in((call.args, call.kwargs))))
    if call.batch != 1:
        raise BadValue(f"clean: expected one text, got {call.batch}.")
    places = (ids[0] == whole_number("answer", answer, 0)).nonzero().flatten()
    if ids.is_floating_point() or not len(places):
        token = answer if words is None else repr(words(answer))
        raise BadValue(f"answer: the token {token} is nowhere in clean, so no head can look at it.")
    paths = patch_paths(seen, clean, corrupted, answer=answer, other=other, position=position)
    if paths.doubt:
        raise BadValue(f"corrupted: {paths.doubt}. Choose a text that asks for the other token.")
    written = contributions(seen, clean, answer=answer, other=other, position=position)
    weights = _weights(seen, call)
    movers = []
    for row, name in enumerate(paths.names):
        if name not in weights or name not in written.sites or weights[name].shape[2] != ids.shape[1]:
            continue
        for head, looks in enumerate(weights[name][:, position]):
            movers.append(
                MoverHead(
                    name,
                    head,
                    float(paths.recovered[row, head]),
                    float(looks[places].sum()),
                    float(looks.sum() * len(places) / max(1, int((looks > 0).sum()))),
                    float(written.heads[written.sites.index(name), head]),
                )
            )
    return sorted(movers, key=lambda one: -one.direct)


@torch.no_grad()
def _weights(seen: Seen, call: Any) -> dict[str, Tensor]:
    """The maps (heads, q, k) of every site."""
    assert seen.model is not None
    with Observer(seen.model, Storage(), None, False) as watched:
        seen.model(*call.args, **call.kwargs)
    return {name: watched[name].weights()[0].double().cpu() for name in watched.names()}
