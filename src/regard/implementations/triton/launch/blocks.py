"""A mask and a bias, prepared for the kernels: form, tables, blocks to visit, keys that no query sees.

What depends on structure alone is computed once and cached; what depends on tensors is computed on the device, without
synchronizing with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils.weak import WeakIdKeyDictionary

from regard.biases import Bias
from regard.implementations.lowering import Lowering, capturing
from regard.implementations.triton.launch.block_schedule import block_of_step, query_blocks
from regard.implementations.triton.launch.device_functions import form_of, is_consecutive, visible
from regard.implementations.triton.launch.launching import launch, processors
from regard.implementations.triton.launch.pieces import cut_long
from regard.masks import FULL, PARTIAL, Mask
from regard.masks.algebra import cut
from regard.masks.positional import FullMask
from regard.masks.visibility import hidden_queries, hides_queries, sees_itself, visible_keys
from regard.values.grid import Sizes
from regard.values.value import rebuild


@dataclass(frozen=True)
class BlockLists:
    """For each block along one axis the blocks to visit along the other: partly visible ones first, then full ones."""

    index: Tensor  # int32, lines × most
    counts: Tensor  # int32, lines × 2: partly visible blocks, all blocks; or lines × 4, see `known_query_blocks`
    strides: tuple[int, int, int, int]  # of batch entries and heads in lines; of a line; of an entry's edges
    edges: Tensor  # where a mask is one span, the ends of each block of queries, (b|1, 4, blocks)
    order: Tensor | None = None  # int32: the blocks by the number of those to visit, most first


class CutBlocks(NamedTuple):
    """Long walks cut into pieces (`pieces.py`), on the device."""

    order: Tensor  # int32 (pieces, 4)
    splits: Tensor  # int32 (blocks that are cut, 3)
    slots: int


@dataclass(frozen=True)
class PreparedMask:
    """What the kernels need of a mask and a bias for requests of some sizes."""

    given: Mask | None
    mask: Mask | None  # the same; None if it hides nothing
    sizes: Sizes
    device: torch.device
    form: str
    bias_form: str
    tables: tuple[Tensor, ...]
    strides: tuple[int, ...]
    numbers: tuple[float, ...]
    fixed: bool = True  # False: the tables of the bias are made in every call
    cached_lists: dict[tuple[int, int, bool], BlockLists] = field(default_factory=dict, compare=False)
    cached_cuts: dict[Any, CutBlocks | None] = field(default_factory=dict, compare=False)
    cached_unclean: dict[Any, Tensor] = field(default_factory=dict, compare=False)
    # The cached result of `_seen`, if there is one.
    found: list[Tensor | None] = field(default_factory=list, compare=False)
    launches: dict[Any, Any] = field(default_factory=dict, compare=False)  # see `KernelWork.launches`
    layouts: dict[Any, Any] = field(default_factory=dict, compare=False)  # the same for `direct.py`

    def cut_blocks(self, block_q: int, block_k: int, by_key: bool, lines: int, turns: int = 1) -> CutBlocks | None:
        """How the walks of `lines` heads are cut, each repeated for `turns` heads; None if none is long."""
        if is_consecutive(self.form) or self.mask is None or self.mask.tensors or capturing():
            return None  # their lengths are alike, or on the device, where reading them would wait
        key = (block_q, block_k, by_key, lines, turns)
        if key not in self.cached_cuts:
            lists = self.lists(block_q, block_k, by_key)
            blocks = -(-self.sizes[3] // block_k) if by_key else -(-self.sizes[2] // block_q)
            found = None
            if not (by_key and lists.strides[1]):
                steps = (lists.counts[:, 1].view(-1, blocks).amax(0) * turns).tolist()
                found = cut_long(steps, lines, processors(self.device))
            self.cached_cuts[key] = None if found is None else CutBlocks(
                torch.tensor(found.pieces, dtype=torch.int32).to(self.device),
                torch.tensor(found.splits, dtype=torch.int32).to(self.device),
                found.slots,
            )
        return self.cached_cuts[key]

    def unclean_keys(self, groups: int, block: int) -> Tensor | None:
        """For each block of keys the next one with a hidden key, int32 (b|1, g|1, blocks + 1); None if all are seen."""
        seen = self.seen(groups)
        return None if seen is None else self._unclean(("keys", groups, block), seen == 0, block)

    def unclean_rows(self, block: int) -> Tensor | None:
        """The same for blocks of queries that contain padding; None where it is not known which rows see something."""
        if self.mask is None or not sees_itself(self.mask, self.sizes):
            return None
        hidden = hidden_queries(self.mask, self.sizes[2], self.device)
        return None if hidden is None else self._unclean(("rows", block), hidden[:, None], block)

    def _unclean(self, key: Any, bad: Tensor, block: int) -> Tensor:
        found = self.cached_unclean.get(key)
        if found is None:
            found = _next_unclean(bad, block)
            if not capturing():
                self.cached_unclean[key] = found
        return found

    @cached_property
    def walk(self) -> str:
        """What a kernel has to do besides products, by which `block_sizes` chooses.

        "hides": read around rows that must not be read; "listed": read which block comes next; "biased": compute a
        bias; "short": visit few blocks; "any" for the rest.
        """
        listed = not is_consecutive(self.form)
        if self.hides_rows or self.seen(self.sizes[1]) is not None:
            return "hides, listed" if listed else "hides"
        if listed or self.bias_form != ".":
            return "listed" if listed else "biased"
        if self.form[0] == "b":
            near, far = (end >> 2 for end in self.strides[int(self.form[1:].split(",")[0]) :][:2])
            return "short" if 4 * (far - near) <= self.sizes[3] else "any"
        return "any"

    @cached_property
    def hides_rows(self) -> bool:
        """Whether the mask declares queries to be padding, whose rows must not be read."""
        return self.mask is not None and hides_queries(self.mask)

    def lists(self, block_q: int, block_k: int, by_key: bool = False) -> BlockLists:
        """The blocks of keys to visit for each block of queries; `by_key`: of queries for each block of keys."""
        key = (block_q, block_k, by_key)
        found = self.cached_lists.get(key)
        if found is None:
            found = self._lists(*key)
            if not capturing():
                self.cached_lists[key] = found
        return found

    def _lists(self, block_q: int, block_k: int, by_key: bool) -> BlockLists:
        unused = torch.empty(0, dtype=torch.int32, device=self.device)
        if self.form[0] in ".b":
            return BlockLists(unused, unused, (0, 0, 0, 0), unused)
        if self.form[0] == "s":
            if not by_key:
                return BlockLists(unused, unused, (0, 0, 0, 0), unused)
            edges, lines = _edges(self, block_q), -(-self.sizes[3] // block_k)
            counts = torch.empty(edges.shape[0] * lines, 4, dtype=torch.int32, device=self.device)
            launch(
                _spans, (edges.shape[0] * lines,), counts, edges, self.strides, edges.shape[2], self.sizes[2],
                self.sizes[3], self.form, block_q, block_k,
            )
            alike = edges.shape[0] == 1
            return BlockLists(unused, counts, (0 if alike else lines, 0, 0, 0 if alike else 4 * edges.shape[2]), edges)
        assert self.mask is not None
        grades = self.mask.grades(cut(self.sizes, block_q, block_k, self.device))
        if self.sizes[3] % block_k:  # a block that reaches beyond the last key is never full
            grades[..., -1].clamp_(max=PARTIAL)
        grades = (grades.mT if by_key else grades).contiguous()
        batch, heads, lines, most = grades.shape
        index = torch.empty(batch * heads * lines, most, dtype=torch.int32, device=self.device)
        counts = torch.empty(batch * heads * lines, 2, dtype=torch.int32, device=self.device)
        launch(_order, (batch * heads * lines,), grades, index, counts, most, PARTIAL, FULL, 128)
        strides = (0 if batch == 1 else heads * lines, 0 if heads == 1 else lines, most, 0)
        if self.mask.tensors:  # sorting in every call would take longer than it saves
            return BlockLists(index, counts, strides, unused)
        order = counts[:, 1].view(-1, lines).amax(0).argsort(descending=True, stable=True).to(torch.int32)
        return BlockLists(index, counts, strides, unused, order)

    def seen(self, groups: int) -> Tensor | None:
        """int8 (b|1, g|1, k): which keys some query of a head that shares them sees; None when all are."""
        if self.mask is None:
            return None
        found = self.found[0] if self.found else self._seen()
        if not self.found and not capturing():
            self.found.append(found)
        if found is None or found.shape[1] == 1:
            return found
        shared: Tensor = found.unflatten(1, (groups, -1)).amax(2)
        return shared

    def _seen(self) -> Tensor | None:
        assert self.mask is not None
        if not self.mask.tensors or self.mask.by_key:
            found = visible_keys(self.mask, self.sizes, self.device)
            return None if found is None else found.to(torch.int8).contiguous()
        return _find_seen(self)


def prepare(mask: Mask | None, bias: Bias | None, sizes: Sizes, device: torch.device) -> PreparedMask:
    """A mask and a bias for requests of these sizes.

    Without tensors, the result is cached by their specs. For a mask with tensors, which never change, it is cached as
    long as the mask object lives. A bias with tensors may be a parameter; only its tables are made in every call.
    """
    if torch.compiler.is_compiling() or _get_current_dispatch_mode() is not None:
        return _prepare(mask, bias, sizes, device)
    if bias is not None and bias.tensors:
        return _with_bias(prepare(mask, None, sizes, device), bias)
    key: tuple[Any, ...] = (None if bias is None else bias.spec, sizes, device, torch.is_inference_mode_enabled())
    if mask is None or not mask.tensors:
        cache, key, most = _BY_SPEC, (None if mask is None else mask.spec, *key), 64
    else:
        cache, key, most = _OF_MASKS.setdefault(mask, {}), (versions(mask), *key), 8
    found = cache.get(key)
    if found is None:
        # Prepare an equal mask with the same tensors: the cached result must not keep the mask itself alive.
        equal: Any = None if mask is None else rebuild(mask.spec, mask.tensors)
        found = _prepare(equal, bias, sizes, device)
        if not capturing():
            if len(cache) >= most:
                cache.clear()
            cache[key] = found
    if capturing():
        _CAPTURED[id(found)] = found  # a CUDA graph reads it even after the caches drop it
    return found


def versions(mask: Mask) -> tuple[int, ...]:
    """How often each tensor of a mask was written to; a user-defined mask need not have copied its tensors."""
    return tuple([0 if tensor.is_inference() else tensor._version for tensor in mask.tensors])


_BY_SPEC: dict[Any, PreparedMask] = {}
_OF_MASKS: Any = WeakIdKeyDictionary()  # by identity: comparing contents would have to read them
_CAPTURED: dict[int, PreparedMask] = {}


def _prepare(mask: Mask | None, bias: Bias | None, sizes: Sizes, device: torch.device) -> PreparedMask:
    given, mask = mask, None if isinstance(mask, FullMask) else mask
    lowering = Lowering(sizes, device, bands=True)
    form = form_of(None if mask is None else lowering.mask(mask))
    bias_form = form_of(None if bias is None else lowering.bias(bias))
    tables = tuple(lowering.tables) or (torch.empty(1, dtype=torch.int32, device=device),)
    strides, numbers = tuple(lowering.strides) or (0,), tuple(lowering.numbers) or (0.0,)
    return PreparedMask(given, mask, sizes, device, form, bias_form, tables, strides, numbers)


def _with_bias(base: PreparedMask, bias: Bias) -> PreparedMask:
    """A prepared mask with a bias whose tables are made anew; everything else is shared."""
    lowering = Lowering(base.sizes, base.device, base.numbers, bands=True)
    lowering.tables, lowering.strides = list(base.tables), list(base.strides)
    form = form_of(lowering.bias(bias))
    tables, strides, numbers = tuple(lowering.tables), tuple(lowering.strides), tuple(lowering.numbers)
    launches: dict[Any, Any] = {}
    if not any(table.data_ptr() % 16 for table in tables):  # code is compiled for aligned tables
        launches = base.launches.setdefault((form, strides, numbers, tuple([t.dtype for t in tables])), launches)
    return replace(
        base, bias_form=form, tables=tables, strides=strides, numbers=numbers, launches=launches, fixed=False
    )


def _edges(prepared: PreparedMask, block_q: int) -> Tensor:
    """Smallest low, largest high, largest low and smallest high of each block of queries, (b|1, 4, blocks)."""
    queries, blocks = prepared.sizes[2], -(-prepared.sizes[2] // block_q)
    entries = 1 if prepared.strides[0] == 0 else prepared.sizes[0]
    low, high = (table[: entries * queries].view(entries, queries) for table in prepared.tables[:2])
    index = torch.arange(blocks * block_q, device=low.device).clamp(max=max(0, queries - 1)).view(blocks, block_q)
    low, high = low[:, index], high[:, index]
    return torch.stack([low.amin(-1), high.amax(-1), low.amax(-1), high.amin(-1)], 1).contiguous()


def _next_unclean(bad: Tensor, block: int) -> Tensor:
    """For each block of an axis (b, g, n) the next one with a `bad` entry, and for the place after the last."""
    blocks = -(-bad.shape[2] // block)
    padded = torch.nn.functional.pad(bad, (0, (blocks + 1) * block - bad.shape[2]))
    unclean = padded.unflatten(2, (blocks + 1, block)).any(3)
    index = torch.arange(blocks + 1, dtype=torch.int32, device=bad.device).masked_fill(~unclean, 2**31 - 1)
    return index.flip(2).cummin(2).values.flip(2).contiguous()


def _find_seen(prepared: PreparedMask) -> Tensor:
    batch, heads, queries, keys = prepared.sizes
    assert prepared.mask is not None
    block = 64
    lists = prepared.lists(block, block, by_key=True)
    # The grades of a mask of the user's need not tell heads apart that its ends do.
    by_head = heads if lists.strides[1] or "a" in prepared.form else 1
    seen = torch.zeros(batch, by_head, keys, dtype=torch.int8, device=prepared.device)
    if 0 not in (batch, heads, queries, keys):
        launch(
            _seen, (-(-keys // block), batch * by_head),
            seen, lists.index, lists.counts, lists.edges, prepared.tables, prepared.strides, lists.strides,
            by_head, queries, keys, prepared.form, block, num_warps=4,
        )
    return seen


@triton.jit(do_not_specialize=["STRIDES", "edges", "q_len", "k_len"])
def _spans(
    COUNTS, EDGES, STRIDES, edges, q_len, k_len, FORM: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr
):
    """Compute once, for all heads, which blocks of queries see a block of keys."""
    lines = tl.cdiv(k_len, BLOCK_K)
    start = tl.program_id(0) % lines * BLOCK_K
    EDGES += tl.program_id(0) // lines * 4 * edges
    partial, full, first, before, _ = query_blocks(
        FORM, STRIDES, EDGES, COUNTS, edges, q_len, start, k_len, BLOCK_Q, BLOCK_K
    )
    COUNTS += tl.program_id(0) * 4
    tl.store(COUNTS, partial)
    tl.store(COUNTS + 1, full)
    tl.store(COUNTS + 2, first)
    tl.store(COUNTS + 3, before)


@triton.jit(do_not_specialize=["most"])
def _order(GRADES, INDEX, COUNTS, most, SOME: tl.constexpr, ALL: tl.constexpr, CHUNK: tl.constexpr):
    """Write the indices of the partly visible blocks of one line, then those of the full ones."""
    line = tl.program_id(0).to(tl.int64)
    GRADES += line * most
    INDEX += line * most
    partial = tl.program_id(0) * 0
    for start in range(0, most, CHUNK):
        here = start + tl.arange(0, CHUNK)
        chosen = (tl.load(GRADES + here, mask=here < most, other=0) == SOME).to(tl.int32)
        tl.store(INDEX + partial + tl.cumsum(chosen, 0) - 1, here, mask=chosen != 0)
        partial += tl.sum(chosen, 0)
    total = partial
    for start in range(0, most, CHUNK):
        here = start + tl.arange(0, CHUNK)
        chosen = (tl.load(GRADES + here, mask=here < most, other=0) == ALL).to(tl.int32)
        tl.store(INDEX + total + tl.cumsum(chosen, 0) - 1, here, mask=chosen != 0)
        total += tl.sum(chosen, 0)
    tl.store(COUNTS + line * 2, partial)
    tl.store(COUNTS + line * 2 + 1, total)


@triton.jit(do_not_specialize=["heads", "q_len", "k_len", "STRIDES", "LIST_STRIDES"])
def _seen(
    SEEN, INDEX, COUNTS, EDGES, TABLES, STRIDES, LIST_STRIDES, heads, q_len, k_len,
    FORM: tl.constexpr, BLOCK: tl.constexpr,
):
    """Which keys of one block some query sees."""
    batch, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    safe = tl.minimum(columns, k_len - 1)
    line = batch * LIST_STRIDES[0] + head * LIST_STRIDES[1] + tl.program_id(0)
    partial, full, first, before, full_first = query_blocks(
        FORM, STRIDES, EDGES + batch * LIST_STRIDES[3], COUNTS + line * 2, tl.cdiv(q_len, BLOCK), q_len,
        tl.program_id(0) * BLOCK, k_len, BLOCK, BLOCK,
    )
    found = tl.zeros([BLOCK], tl.int32) + (full > 0).to(tl.int32)
    for step in range(0, partial):
        block = block_of_step(
            FORM, INDEX + line.to(tl.int64) * LIST_STRIDES[2], step, first, before, full_first, False, full
        )
        rows = tl.minimum(block * BLOCK + tl.arange(0, BLOCK), q_len - 1)
        tile = visible(FORM, TABLES, STRIDES, batch, head, rows[:, None], safe[None, :])
        found = tl.maximum(found, tl.max(tile.to(tl.int32), 0))
    into = SEEN + (batch * heads + head).to(tl.int64) * k_len + columns
    tl.store(into, (found > 0).to(tl.int8), mask=columns < k_len)
