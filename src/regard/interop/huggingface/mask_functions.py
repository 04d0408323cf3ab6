"""What the mask functions of transformers mean in the algebra of masks.

transformers describes a mask by a function of (batch, head, query, key) that it composes from a few factories of
`masking_utils`: causal, a sliding window, chunks, blocks, packed sequences, padding. Such a function is a closure, so
the factory that made it and the arguments it was made with can be read from it. A function that no known factory made
(a model's own overlay) stays what it is: it is evaluated, and becomes a dense part of the mask.

What a factory means was read from its source code in the versions 4.56 to 5.22. `Factories` compares each one with
that meaning once, on a small example, and leaves out those that differ in the installed version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard import masks
from regard.masks import Mask
from regard.masks.algebra import And
from regard.masks.positional import CausalMask, FullMask, WindowMask

Closure = Mapping[str, Any]  # what a function was made with, by name
FARTHEST = 1 << 30  # beyond any length: a window without a limit on one side


class Extent(NamedTuple):
    """The part of the pairs of positions that a mask covers.

    Of tensors with a row for each example transformers reads the first `batch` rows: those of MusicGen have a row for
    each of an example's codebooks.
    """

    batch: int
    queries: int
    keys: int
    first_query: int  # its position
    first_key: int

    @property
    def anchor(self) -> dict[str, Any]:
        """The offset of positional masks; none where the last query stands at the last key."""
        offset = self.first_query - self.first_key
        return {} if offset == self.keys - self.queries else {"offset": offset}

    def of_queries(self, by_position: Tensor) -> Tensor:
        """The columns of a tensor (b, positions) at which queries stand."""
        return by_position[: self.batch, self.first_query : self.first_query + self.queries]

    def of_keys(self, by_position: Tensor) -> Tensor:
        """The columns of a tensor (b, positions) at which keys stand."""
        return by_position[: self.batch, self.first_key : self.first_key + self.keys]


def _causal(made_with: Closure, extent: Extent) -> Mask:
    return masks.causal(**extent.anchor)


def _full(made_with: Closure, extent: Extent) -> Mask:
    return masks.full()


def _sliding(made_with: Closure, extent: Extent) -> Mask:
    """Keys less than `sliding_window` before the query, and all later ones."""
    before = int(made_with["sliding_window"]) - 1
    if before < 0:  # a model whose configuration switches windows off makes a mask that no layer uses
        return ~masks.full()
    if (
        before >= extent.first_query + extent.queries - 1 - extent.first_key
    ):  # the first key is near enough to every query
        return masks.full()
    return masks.window(before, FARTHEST, **extent.anchor)


def _sliding_both_ways(made_with: Closure, extent: Extent) -> Mask:
    return masks.window(int(made_with["sliding_window"]), **extent.anchor)


def _chunked(made_with: Closure, extent: Extent) -> Mask:
    """Positions of the same chunk, counted from the first real one; those before it are padding."""
    size, padding = int(made_with["chunk_size"]), made_with["left_padding"][: extent.batch, None]
    queries = torch.arange(extent.queries, device=padding.device) + extent.first_query
    keys = torch.arange(extent.keys, device=padding.device) + extent.first_key
    return masks.documents((queries - padding) // size, (keys - padding) // size)


def _blockwise(made_with: Closure, extent: Extent) -> Mask:
    ids = made_with["block_sequence_ids"]
    return masks.documents(extent.of_queries(ids), extent.of_keys(ids))


def _packed(made_with: Closure, extent: Extent) -> Mask:
    ids = made_with["packed_sequence_mask"]
    return masks.documents(extent.of_queries(ids), extent.of_keys(ids))


def _padding(made_with: Closure, extent: Extent) -> Mask:
    return masks.padding(extent.of_keys(made_with["padding_mask"]).bool())


# The name of a factory (or of a function that no factory makes), what it means, and arguments for a small example.
_IDS = ((0, 0, 0, 1, 1, 2, 2), (0, 1, 1, 1, 1, 1, 2))
_MEANINGS: dict[str, tuple[Callable[[Closure, Extent], Mask], tuple[Any, ...] | None]] = {
    "causal_mask_function": (_causal, None),
    "bidirectional_mask_function": (_full, None),
    "sliding_window_overlay": (_sliding, (3,)),
    "sliding_window_bidirectional_overlay": (_sliding_both_ways, (2,)),
    "chunked_overlay": (_chunked, (3, (0, 0))),
    "blockwise_overlay": (_blockwise, (_IDS,)),
    "packed_sequence_mask_function": (_packed, (_IDS,)),
    "padding_mask_function": (_padding, (((True,) * 5 + (False,) * 2, (False,) * 2 + (True,) * 5),)),
}
_SAMPLE = Extent(batch=2, queries=7, keys=7, first_query=0, first_key=0)


class Factories:
    """The factories of an installed `transformers.masking_utils` whose meaning is known."""

    def __init__(self, library: ModuleType) -> None:
        self.library = library
        self.known = {name for name in _MEANINGS if self._agrees(name)}

    def read(self, function: Any, extent: Extent, evaluate: Callable[[Any], Tensor]) -> Mask:
        """The mask that a function of transformers describes. `evaluate` makes a tensor (b,1,q,k) of an unknown one."""
        name, made_with = _origin(function, self.library)
        if name in ("and_masks", "or_masks"):
            components = [
                self.read(component_function, extent, evaluate) for component_function in made_with["mask_functions"]
            ]
            return joined(components) if name == "and_masks" else _united(components)
        if name in self.known:
            return _MEANINGS[name][0](made_with, extent)
        return masks.dense(evaluate(function))

    def _agrees(self, name: str) -> bool:
        """Whether the installed function and its meaning give the same mask on a small example."""
        meaning, arguments = _MEANINGS[name]
        library_function = getattr(self.library, name, None)
        if not isinstance(library_function, FunctionType):
            return False
        try:
            function = (
                library_function
                if arguments is None
                else library_function(*(_tensor(argument) for argument in arguments))
            )
            ranges = (torch.arange(2), torch.arange(1), torch.arange(7), torch.arange(7))
            index = [
                positions.view(*(-1 if axis == at else 1 for at in range(4))) for axis, positions in enumerate(ranges)
            ]
            theirs = torch.as_tensor(function(*index)).expand(2, 1, 7, 7)
            if _origin(function, self.library)[0] != name:
                return False
            ours = meaning(_origin(function, self.library)[1], _SAMPLE).dense(7, 7, 2)
            return torch.equal(ours.expand(2, 1, 7, 7), theirs)
        except (TypeError, KeyError, ValueError, RuntimeError, AttributeError, IndexError):
            return False


def _origin(function: Any, library: ModuleType) -> tuple[str, Closure]:
    """The name of the factory of `library` that made a function, and the arguments; "" for any other function."""
    if not isinstance(function, FunctionType) or function.__module__ != library.__name__:
        return "", {}
    cells = function.__closure__ or ()
    made_with = {name: cell.cell_contents for name, cell in zip(function.__code__.co_freevars, cells, strict=True)}
    return function.__qualname__.partition(".")[0], made_with


def _tensor(given: Any) -> Any:
    return torch.tensor(given) if isinstance(given, tuple) else given


def joined(parts: list[Mask]) -> Mask:
    """What all parts allow. Causal masks and windows of one alignment become one window, which fused kernels take."""
    spans = [mask for mask in parts if isinstance(mask, (CausalMask, WindowMask))]
    offsets = [span.offset for span in spans]
    # A tensor as an offset has no truth value in a comparison; here offsets are numbers.
    if len(spans) > 1 and all(isinstance(offset, int | None) and offset == offsets[0] for offset in offsets):
        parts = [_span(spans), *(mask for mask in parts if not isinstance(mask, (CausalMask, WindowMask)))]
    parts = [mask for mask in parts if not isinstance(mask, FullMask)]
    intersection: Mask = parts[0] if parts else masks.full()
    for mask in parts[1:]:
        intersection = And(intersection, mask)
    return intersection


def _span(parts: Sequence[CausalMask | WindowMask]) -> Mask:
    """The intersection of windows around one diagonal; a causal mask is a window without a beginning."""
    windows = [window for window in parts if isinstance(window, WindowMask)]
    if not windows:
        return parts[0]
    after = 0 if len(windows) < len(parts) else min(window.reach for window in windows)
    return WindowMask(min(window.before for window in windows), after, parts[0].align, parts[0].offset)


def _united(parts: list[Mask]) -> Mask:
    """What any part allows."""
    union = parts[0]
    for component in parts[1:]:
        union = masks.full() if isinstance(component, FullMask) or isinstance(union, FullMask) else union | component
    return union
