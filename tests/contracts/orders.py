"""Orders of summation: the same case with its axes permuted.

The exact answer permutes along with the inputs, the rounding does not. So one processor shows how far the plain formula
may be off on any of them, and a result that is right in one order only is found out.
"""

from dataclasses import dataclass

import torch

LETTERS = {
    "query": "bhqd",
    "key": "bgkd",
    "value": "bgkv",
    "sink": "h",
    "out": "bhqv",
    "logsumexp": "bhq",
    "out gradient": "bhqv",
    "lse gradient": "bhq",
}


@dataclass(frozen=True, eq=False)
class Order:
    """For each letter of the alphabet of shapes, the index that takes its axis into this order."""

    index: dict[str, torch.Tensor]

    def apply(self, x, letters):
        """A tensor in this order; an axis without an index, or one that is broadcast (of size 1), stays."""
        for axis, letter in enumerate(letters, start=x.dim() - len(letters)):
            if letter in self.index and x.shape[axis] > 1:
                x = x.index_select(axis, self.index[letter].to(x.device))
        return x

    def undo(self, x, letters):
        """A tensor of this order in the original one."""
        inverse = {letter: index.argsort() for letter, index in self.index.items()}
        return Order(inverse).apply(x, letters)


ORIGINAL = Order({})


def draw_order(sizes, seed, axes="bhgqkdv"):
    """A random order of the axes named; heads that share a key head stay together."""
    generator = torch.Generator().manual_seed(seed)
    lengths = {letter: getattr(sizes, letter) for letter in axes if letter != "h"}
    index = {letter: torch.randperm(length, generator=generator) for letter, length in lengths.items()}
    if "h" in axes:
        groups, shared = index.setdefault("g", torch.arange(sizes.g)), sizes.h // sizes.g
        inner = torch.stack([torch.randperm(shared, generator=generator) for _ in range(sizes.g)])
        index["h"] = (groups[:, None] * shared + inner).flatten()
    return Order(index)
