"""What is computed under which settings, the most valuable cases first."""

from __future__ import annotations

from typing import NamedTuple

import torch

from regard_workbench.bench.gpu.structured import SPARSE, STRUCTURED
from regard_workbench.bench.gpu.work import LONG_128, SHORT_64, SHORT_128, Size

DEVICE, DTYPE = "cuda", torch.bfloat16
WORKS = {work.name: work for work in (*SPARSE, *STRUCTURED)}
Sizes = tuple[int, ...]


class Case(NamedTuple):
    """What is computed, and the settings to try instead of the one in place: name of the kernel, then its sizes."""

    work: str
    size: Size
    train: bool
    variants: tuple[tuple[str, Sizes], ...]

    @property
    def name(self) -> str:
        """As in `regard bench`."""
        return f"{self.work}-{self.size.label}-{'train' if self.train else 'forward'}"


FORWARD_128: tuple[tuple[str, Sizes], ...] = (
    ("forward", (64, 64, 4, 2)),
    ("forward", (64, 64, 4, 3)),
    ("forward", (128, 64, 8, 3)),
    ("forward", (128, 128, 8, 2)),
)
LISTED_128: tuple[tuple[str, Sizes], ...] = (
    ("forward", (64, 64, 4, 2)),
    ("forward", (64, 64, 4, 3)),
    ("forward", (64, 64, 4, 5)),
    ("forward", (128, 64, 8, 5)),
)
FORWARD_64: tuple[tuple[str, Sizes], ...] = (
    ("forward", (64, 64, 4, 2)),
    ("forward", (64, 64, 4, 2, 4)),
    ("forward", (64, 64, 4, 3, 3)),
    ("forward", (128, 64, 8, 2, 2)),
    ("forward", (64, 128, 4, 2)),
)
BACKWARD_128: tuple[tuple[str, Sizes], ...] = (
    ("keys", (64, 64, 8, 2)),
    ("keys", (32, 64, 4, 3)),
    ("keys", (64, 32, 4, 3)),
    ("keys", (128, 64, 8, 2)),
    ("queries", (64, 64, 8, 2)),
    ("queries", (128, 64, 8, 2)),
    ("queries", (64, 32, 4, 3, 3)),
)
# A third program of the kernel for queries fits with two stages of 32 keys; smaller blocks of queries leave room for
# more stages in the kernel for keys.
LISTED_BACKWARD_128: tuple[tuple[str, Sizes], ...] = (
    ("keys", (32, 64, 4, 4)),
    ("keys", (32, 64, 4, 3)),
    ("queries", (64, 32, 4, 2, 3)),
    ("queries", (64, 64, 4, 2)),
)
BACKWARD_64: tuple[tuple[str, Sizes], ...] = (
    ("keys", (64, 64, 4, 2, 3)),
    ("keys", (64, 64, 4, 3, 3)),
    ("keys", (64, 64, 4, 2)),
    ("queries", (64, 64, 4, 2, 4)),
    ("queries", (64, 64, 4, 2, 3)),
    ("queries", (64, 64, 4, 3)),
)
CASES = (
    Case("documents", SHORT_128, False, LISTED_128),
    Case("alibi", SHORT_64, False, FORWARD_64),
    Case("documents", SHORT_128, True, BACKWARD_128),
    Case("window", SHORT_64, True, BACKWARD_64),
    Case("global", SHORT_128, False, LISTED_128),
    Case("alibi", SHORT_128, False, FORWARD_128),
    Case("alibi", SHORT_64, True, BACKWARD_64),
    Case("window", SHORT_64, False, FORWARD_64),
    Case("global", SHORT_128, True, LISTED_BACKWARD_128),
    Case("prefix", SHORT_128, True, BACKWARD_128),
    Case("alibi", SHORT_128, True, BACKWARD_128),
    Case("documents", LONG_128, False, LISTED_128[:3]),
    Case("documents", LONG_128, True, BACKWARD_128[:3]),
    Case("prefix", SHORT_64, False, FORWARD_64),
    Case("prefix", SHORT_128, False, FORWARD_128),
    Case("window", SHORT_128, False, FORWARD_128),
    Case("documents", SHORT_64, False, FORWARD_64),
    Case("documents", SHORT_64, True, BACKWARD_64),
)
