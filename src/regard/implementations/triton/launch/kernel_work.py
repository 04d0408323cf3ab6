"""One attention in the form that the kernels take: their arguments, and the launches kept for its signature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from regard.implementations.triton.launch import block_sizes
from regard.implementations.triton.launch.blocks import BlockLists, CutBlocks, PreparedMask
from regard.implementations.triton.launch.launching import Launch
from regard.implementations.triton.launch.pieces import CutLaunch
from regard.scores import Score
from regard.scores.dot import SoftcapScore

AnyLaunch = Launch | CutLaunch
Launches = dict[Any, Any]  # of `AnyLaunch`, and of tuples of them
_MOST_SIGNATURES = 64


@dataclass(eq=False)
class KernelWork:
    """One attention. Entries of rows of the query, the key and the value are contiguous."""

    query: Tensor
    key: Tensor
    value: Tensor
    sink: Tensor | None
    seed: Tensor | None
    score: Score
    prepared: PreparedMask
    scale: float
    dropout: float

    @property
    def width(self) -> int:
        """The padded width of keys or values, whichever is larger."""
        return block_sizes.padded(max(self.query.shape[3], self.value.shape[3]))

    def numbers(self) -> dict[str, Any]:
        """The arguments that are sizes, factors and thresholds."""
        _, heads, queries, keys = self.prepared.sizes
        return {
            "heads": heads, "group": heads // self.key.shape[1], "q_len": queries, "k_len": keys, "scale": self.scale,
            "cap": self.score.cap if isinstance(self.score, SoftcapScore) else 1.0,
            "threshold": min(round(self.dropout * 2**32), 2**32 - 1) - 2**31, "keep": 1 / (1 - self.dropout),
        }

    def form(self) -> dict[str, Any]:
        """The arguments that kernels are compiled for."""
        wide, across = self.query.shape[3], self.value.shape[3]
        coarse = self.query.dtype != torch.float32
        # In float32 the largest score of a row minus itself has to be 0: a product and a subtraction in one operation
        # would leave the rounding of the product, and a single key's weight would not be 1.
        exact = {} if coarse or block_sizes.SMALL else {"enable_fp_fusion": False}
        return exact | {
            "FORM": self.prepared.form, "BIAS": self.prepared.bias_form, "CAP": isinstance(self.score, SoftcapScore),
            "DROPS": self.seed is not None, "HIDES": self.seen is not None, "D": wide, "WIDTH": across,
            "BLOCK_D": block_sizes.padded(wide), "BLOCK_V": block_sizes.padded(across),
            "APPROXIMATE": coarse and not block_sizes.SMALL,
            "PRECISION": block_sizes.precision(self.query.dtype),
        }

    @property
    def sloped(self) -> bool:
        """Whether the bias is a slope that kernels take apart into numbers of rows and of columns (`slope_of`).

        These are larger than their sum, which would show in float32.
        """
        coarse = self.query.dtype != torch.float32 or block_sizes.SMALL
        return coarse and self.prepared.bias_form[0] == "l" and not isinstance(self.score, SoftcapScore)

    @property
    def unused(self) -> Tensor:
        """A tensor to pass where a kernel does not read the argument."""
        return self.prepared.tables[0]

    def ordered(self, lists: BlockLists, cut: CutBlocks | None) -> dict[str, Any]:
        """The arguments that say which blocks come first, and which of them are cut into pieces."""
        if cut is not None:
            return {"ORDER": cut.order, "ORDERED": 2, "pieces": cut.order.shape[0], "slots": cut.slots}
        order = self.unused if lists.order is None else lists.order
        return {"ORDER": order, "ORDERED": int(lists.order is not None), "pieces": 1, "slots": 0}

    def unclean_keys(self, block: int) -> dict[str, Any]:
        """The arguments that say from which key on rows must be looked at before they are read."""
        first_unclean = self.prepared.unclean_keys(self.key.shape[1], block)
        return {
            "UNCLEAN": self.unused if first_unclean is None else first_unclean,
            "SEEN_STRIDES": (*table_steps(self.seen), *table_steps(first_unclean)),
        }

    def optional(self) -> dict[str, Any]:
        """What changes from call to call besides the rows: the seed and the tables of a bias, if there are any."""
        arguments: dict[str, Any] = {} if self.seed is None else {"SEED": self.seed}
        return arguments if self.prepared.fixed else {**arguments, "TABLES": self.prepared.tables}

    def launches(self, *others: Tensor) -> Launches | None:
        """The launches kept for calls like this one, see `find_launches`."""
        return find_launches(
            self.prepared, self.query, self.key, self.value, self.score, self.scale, self.dropout, self.seed,
            self.sink, others,
        )

    @cached_property
    def seen(self) -> Tensor | None:
        """Which keys some query sees; None if every key is seen."""
        return self.prepared.seen(self.key.shape[1])

    def tables(self, lists: BlockLists) -> dict[str, Any]:
        """The arguments that say which keys each query sees."""
        visible, prepared = self.seen, self.prepared
        unused = prepared.tables[0]
        return {
            "SEED": unused if self.seed is None else self.seed, "SEEN": unused if visible is None else visible,
            "LIST": lists.index if lists.index.numel() else unused,
            "COUNTS": lists.counts if lists.counts.numel() else unused,
            "TABLES": prepared.tables, "TABLE_STRIDES": prepared.strides, "NUMBERS": prepared.numbers,
            "SEEN_STRIDES": table_steps(visible), "LIST_STRIDES": lists.strides,
        }


def find_launches(
    prepared: PreparedMask, query: Tensor, key: Tensor, value: Tensor, score: Score, scale: float,
    dropout: float = 0.0, seed: Tensor | None = None, sink: Tensor | None = None, others: tuple[Tensor, ...] = (),
) -> Launches | None:
    """The launches kept for calls with such tensors; None if one of them, or of `others`, is not aligned.

    Their key holds everything that the code and the numbers depend on, besides the mask, the bias and the sizes.
    """
    addresses = query.data_ptr() | key.data_ptr() | value.data_ptr()
    if sink is not None:
        addresses |= sink.data_ptr()
    for tensor in others:
        addresses |= tensor.data_ptr()
    if addresses % 16:
        return None
    signature = (
        query.dtype, query.shape[3], query.stride(), key.shape, key.stride(), value.shape, value.stride(), score.spec,
        scale, dropout, seed is None, None if sink is None else sink.dtype,
    )
    launches: Launches | None = prepared.launches.get(signature)
    if launches is None:
        if len(prepared.launches) >= _MOST_SIGNATURES:
            prepared.launches.clear()
        launches = prepared.launches[signature] = {}
    return launches


def launch(launches: Launches | None, key: Any, tensors: dict[str, Any], make: Callable[[bool], AnyLaunch]) -> None:
    """Launch kernels with these tensors; `make` makes the launch where `launches` does not know the key.

    It is told whether the launch will be repeated.
    """
    kernel_launch = None if launches is None else launches.get(key)
    if kernel_launch is None:
        kernel_launch = make(launches is not None)
        if launches is not None:
            launches[key] = kernel_launch
    kernel_launch(*tensors.values())


def table_steps(table: Tensor | None) -> tuple[int, int]:
    """The strides of batch entries and heads, 0 for an axis of one."""
    if table is None:
        return 0, 0
    first, second = (0 if table.shape[axis] == 1 else table.stride(axis) for axis in (0, 1))
    return first, second


def laid_out(rows: Tensor) -> Tensor:
    """Rows whose entries are contiguous."""
    return rows if rows.stride(3) == 1 or rows.shape[3] == 1 else rows.contiguous()


def strides(rows: Tensor) -> tuple[int, ...]:
    """The strides of batch entries, heads and rows."""
    return rows.stride()[:3]


def copied_in_bulk(*all_rows: Tensor) -> bool:
    """Whether the GPU's copy engine can read rows: a padded width, and addresses at multiples of 16 bytes."""
    for rows in all_rows:
        step, width = 16 // rows.element_size(), rows.shape[3]
        if width != block_sizes.padded(width) or rows.data_ptr() % 16:
            return False
        for axis, stride in enumerate(strides(rows)):
            if rows.shape[axis] > 1 and (stride == 0 or stride % step):
                return False
    return True


def described(rows: Tensor, block: int) -> TensorDescriptor:
    """A descriptor for the copy engine: a tensor and the size of the blocks of rows to read."""
    width = rows.shape[3]
    # The stride of an axis of one is arbitrary, but must be a multiple of 16 bytes.
    steps = [stride if size > 1 else width for size, stride in zip(rows.shape, strides(rows), strict=False)]
    return TensorDescriptor(rows, list(rows.shape), [*steps, 1], [1, 1, block, width])
