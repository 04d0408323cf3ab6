"""Where to stand: the functions through which the modules of a model attend."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
import torch.nn.attention.flex_attention as flex_module
from torch import nn

import regard
import regard.core as core
from regard.nn.ntm.machine import Tape
from regard.observation.capture import modules as written_out
from regard.observation.capture.flex import Flex
from regard.observation.capture.huggingface import EagerFlex, EagerForward
from regard.observation.capture.interception import Adapter, Spot
from regard.observation.capture.ours import ACCOUNTABLE, Account, Attend, Traced
from regard.observation.capture.torch_calls import (
    MultiheadFunction,
    NativeEncoderLayer,
    NativeMultihead,
    ScaledDotProduct,
)

# Python modules that were loaded and held none of the functions; to ask thousands each time would take milliseconds.
_WITHOUT: set[str] = set()


def spots(model: nn.Module | None) -> list[Spot]:
    """Everything to intercept while a model is observed; without one, what a block of code may call."""
    found = [
        Spot(torch.nn.functional, "scaled_dot_product_attention", ScaledDotProduct()),
        Spot(torch.nn.functional, "multi_head_attention_forward", MultiheadFunction()),
        Spot(torch, "_native_multi_head_attention", NativeMultihead()),
        Spot(torch, "_transformer_encoder_layer_fwd", NativeEncoderLayer()),
        Spot(flex_module, "flex_attention", Flex()),
        Spot(core, "attend", Attend()),
        Spot(regard, "attend", Attend()),
    ]
    transformers = sys.modules.get("transformers.integrations.flex_attention")
    if transformers is not None and hasattr(transformers, "compile_friendly_flex_attention"):
        found.append(Spot(transformers, "compile_friendly_flex_attention", EagerFlex()))
    if model is not None:
        found.append(Spot(type(model), "forward", entrance=True))
        found += _of_classes(model)
    return [*found, *_imported(model)]


def _of_classes(model: nn.Module) -> Iterator[Spot]:
    """Classes of modules that write their attention out, or whose weights are more than one call."""
    x_transformers = sys.modules.get("x_transformers.attend")
    kinds = {type(module): module for module in model.modules()}
    for kind, module in kinds.items():
        if x_transformers is not None and issubclass(kind, x_transformers.Attend):
            yield Spot(kind, "forward", written_out.Attend())
        elif isinstance(getattr(module, "fused_attn", None), bool) and hasattr(module, "num_heads"):
            yield Spot(kind, "forward", written_out.Replayed("fused_attn"))
        elif isinstance(module, ACCOUNTABLE):
            yield Spot(kind, "forward", Account())
        elif isinstance(module, Tape):
            yield Spot(kind, "forward", Traced())


def _imported(model: nn.Module | None) -> Iterator[Spot]:
    """Names under which modules of Python hold these functions themselves: `from torch.nn.functional import …`.

    A Python module that defines a class of the model is searched for other names (`as sdpa`), for compiled
    FlexAttention, and for the eager attention of a family of models; so is `__main__`. All others are searched only for
    the functions' own names, and only once if they have none.
    """
    originals: dict[Any, Adapter] = {
        torch.nn.functional.scaled_dot_product_attention: ScaledDotProduct(),
        flex_module.flex_attention: Flex(),
        core.attend: Attend(),
    }
    names = {function.__name__ for function in originals}
    homes = (
        set()
        if model is None
        else {kind.__module__ for part in model.modules() for kind in type(part).__mro__}
    )
    for home in {*homes, "__main__"}:
        module = sys.modules.get(home)
        if isinstance(module, ModuleType) and not _is_known(home):
            for name, held in list(vars(module).items()):
                adapter = _adapter(held, originals, name)
                if adapter is not None:
                    yield Spot(module, name, adapter)
    for home in [home for home in sys.modules if home not in _WITHOUT and home not in homes]:
        module = sys.modules.get(home)
        holding = [name for name in names if isinstance(module, ModuleType) and name in vars(module)]
        if not holding or _is_known(home):
            _WITHOUT.add(home)
        for name in holding if home not in _WITHOUT and home != "__main__" else ():
            adapter = _adapter(vars(module)[name], originals, name)
            if adapter is not None:
                assert module is not None
                yield Spot(module, name, adapter)


def _is_known(home: str) -> bool:
    """Whether a Python module is torch's or ours: what there is in those is on the list already."""
    return home in ("torch", "regard") or home.startswith(("torch.", "regard."))


def _adapter(held: Any, originals: dict[Any, Adapter], name: str) -> Adapter | None:
    if not callable(held) or isinstance(held, type):
        return None
    if name == "eager_attention_forward":
        return EagerForward()
    plain = getattr(held, "_torchdynamo_orig_callable", held)  # what torch.compile was given
    try:
        return originals.get(plain)
    except TypeError:  # cannot be hashed, so it is none of them
        return None
