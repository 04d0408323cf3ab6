"""The mask function that transformers calls once for each forward pass and kind of layer."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.weak import WeakIdKeyDictionary

from regard.errors import Unsupported
from regard.interop.huggingface.mask_functions import Extent, Factories, joined
from regard.interop.huggingface.structured_mask import StructuredMask, added
from regard.masks import Mask
from regard.masks.from_tensors import PaddingMask
from regard.masks.positional import FullMask
from regard.support.arguments import is_fake_or_meta

_ASKED_FOR_ALL_KEYS: Any = WeakIdKeyDictionary()  # configurations, by identity


def asked_for_all_keys(config: Any) -> bool:
    """Whether a model of this configuration has asked for a mask that hides nothing, and was given None."""
    return config is not None and config in _ASKED_FOR_ALL_KEYS


def mask_function(library: ModuleType, positional: bool = False) -> Callable[..., Tensor | None]:
    """The function for `AttentionMaskInterface`. `library` is `transformers.masking_utils`.

    `positional`: the mechanism depends on where queries stand, which a plain tensor does not tell.
    """
    factories = Factories(library)

    def regard_mask(
        *,
        batch_size: int,
        kv_length: int,
        mask_function: Callable[..., Any],
        kv_offset: int = 0,
        attention_mask: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
        allow_is_bidirectional_skip: bool = False,
        **given: Any,
    ) -> Tensor | None:
        """A mask (b,1,q,k). It is None only where all keys are visible and the model takes None for that.

        (Informer, whose layers shorten the sequence, takes nothing else.) So no attention function has to guess whether
        it is causal; `asked_for_all_keys` tells it where a layer says that it is and its model says otherwise.
        """

        def visible(function: Callable[..., Any], padding: Tensor | None) -> Tensor:
            # by the library's own code, in the arguments of the installed version
            dense: Tensor = library.ALL_MASK_ATTENTION_FUNCTIONS["sdpa"](
                batch_size=batch_size,
                kv_length=kv_length,
                mask_function=function,
                kv_offset=kv_offset,
                attention_mask=padding,
                **given | {"allow_is_causal_skip": False},
            )
            return dense

        traced = _traced(attention_mask, given)
        if traced and positional and not _is_placed(kv_length, given):
            raise Unsupported(
                "attn_implementation: this mechanism depends on the positions of queries, which are not known while a "
                "step with a static cache is compiled. Use a dynamic cache, or do not compile."
            )
        if traced or (_is_compiled_step(given) and not positional):
            return added(visible(mask_function, attention_mask), dtype)
        queries, first_query, device = _placed(given)
        extent = Extent(batch_size, queries, kv_length, first_query, int(kv_offset))
        mask = factories.read(mask_function, extent, lambda function: visible(function, None))
        if attention_mask is not None:
            mask = _without_padding(mask, attention_mask, extent)
        if allow_is_bidirectional_skip and isinstance(mask, FullMask):
            if given.get("config") is not None:
                _ASKED_FOR_ALL_KEYS[given["config"]] = True
            return None
        return StructuredMask(mask, batch_size, queries, kv_length, device, dtype, extent.anchor)

    return regard_mask


def _placed(given: dict[str, Any]) -> tuple[int, int, torch.device | str]:
    """The number of queries, the position of the first one, and the device of the mask."""
    positions = given.get("cache_position")  # until transformers 5.0 or so
    if positions is None:
        return given["q_length"], int(given.get("q_offset", 0)), given.get("device", "cpu")
    return len(positions), int(positions[0]) if len(positions) else 0, positions.device


def _traced(padding: Tensor | None, given: dict[str, Any]) -> bool:
    """Whether code is traced: a tracer cannot look into the closures that describe a mask."""
    tensors = [
        argument
        for argument in (padding, given.get("cache_position"), given.get("q_offset"))
        if isinstance(argument, Tensor)
    ]
    return (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or any(is_fake_or_meta(tensor) for tensor in tensors)
    )


def _is_placed(keys: int, given: dict[str, Any]) -> bool:
    """Whether traced code knows that the last query stands at the last key."""
    positions = given.get("cache_position")
    return not isinstance(given.get("q_offset"), Tensor) if positions is None else len(positions) == keys


def _is_compiled_step(given: dict[str, Any]) -> bool:
    """Whether transformers may hand the mask to a compiled step. It has one query, for which a tensor is linear."""
    positions, offset = given.get("cache_position"), given.get("q_offset")
    step = (given.get("q_length") if positions is None else len(positions)) == 1
    return step and (isinstance(offset, Tensor) or not given.get("allow_is_causal_skip", True))


def _without_padding(found: Mask, real: Tensor, extent: Extent) -> Mask:
    """`found` without keys that are padding. `real` (b, positions) may end before the last key of a static cache."""
    missing = extent.first_key + extent.keys - real.shape[-1]
    keep = extent.of_keys(pad(real.bool(), (0, max(0, missing))))
    if bool(keep.all()):  # reading waits for a GPU, once for each forward pass; masks of transformers do the same
        return found
    return joined([found, PaddingMask(keep)])
