"""Keys that a model chooses for each query before it attends, and the refusal of choices that regard cannot read.

Eager attention and sdpa get a choice as a part of their mask; every other attention gets it by keyword, in a form of
the model's own. A keyword that is overlooked would make a sparse model dense.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from regard import masks
from regard.errors import Unsupported
from regard.masks import Mask

READ = {
    "indices",
    "block_indices",
    "position_bias",
    "softcap",
    "s_aux",
    "head_mask",
    "cache",
    "is_causal",
    "sliding_window",
    "cu_seq_lens_k",
    "output_attentions",
}
# What says nothing about scores or visible keys that queries, keys and the mask do not hold already. Positions are in
# them; `seq_idx` and the lengths of queries repeat what `cu_seq_lens_k` says.
WITHOUT_EFFECT = {
    "position_ids",
    "cache_position",
    "cu_seq_lens_q",
    "max_length_q",
    "max_length_k",
    "seq_idx",
    "num_items_in_batch",
}


def chosen_keys(module: nn.Module, query: Tensor, keys: int, keywords: Mapping[str, Any]) -> Mask | None:
    """The keys that an indexer chose, singly (DeepSeek 3.2) or in blocks (MiniMax-M3); None where none chose."""
    singly, in_blocks = keywords.get("indices"), keywords.get("block_indices")
    if singly is not None:
        return masks.dense(_visible(singly, keys, query.shape[1]))
    if in_blocks is None:
        return None
    size = getattr(getattr(module, "indexer", None), "block_size", None)
    if not isinstance(size, int):
        raise Unsupported(
            f"block_indices: {type(module).__name__} chooses blocks of keys, but has no indexer.block_size with their "
            "size. Use attn_implementation='eager'."
        )
    blocks = _visible(in_blocks, -(-keys // size), query.shape[1])
    return masks.dense(blocks.repeat_interleave(size, -1)[..., :keys])


def _visible(chosen: Tensor, count: int, heads: int) -> Tensor:
    """Which of `count` keys or blocks were chosen, (b,h,q,count), from their numbers (b,q,n) or (b,groups,q,n).

    A negative number is an unused place. Each group of heads may have a choice of its own.
    """
    numbers = chosen.long() if chosen.dim() == 4 else chosen.long()[:, None]
    numbers = torch.where(numbers < 0, count, numbers)
    picked = numbers.new_zeros((*numbers.shape[:3], count), dtype=torch.bool)
    picked = pad(picked, (0, 1)).scatter(-1, numbers, True)[..., :count]
    groups = picked.shape[1]
    return picked if groups == 1 else picked.repeat_interleave(heads // groups, 1)


def refuse_unread(keywords: Mapping[str, Any]) -> None:
    """Raise for a tensor whose meaning is not known: it may say which keys are visible, or change the scores."""
    for name, tensor in keywords.items():
        if isinstance(tensor, Tensor) and name not in READ and name not in WITHOUT_EFFECT:
            raise Unsupported(
                f"{name}: the model gives its attention this tensor, {tuple(tensor.shape)}, and attn_implementation="
                "'regard' does not know what it means. Use attn_implementation='eager'."
            )
