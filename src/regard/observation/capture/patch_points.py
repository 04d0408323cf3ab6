"""Patch points: the functions through which the modules of a model attend."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterable, Sequence
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch
import torch.nn.attention.flex_attention as flex_module
from torch import nn

import regard
import regard.dispatch.attention as dispatch
from regard.observation.capture import fused_twins
from regard.observation.capture.attend_calls import AttendAdapter
from regard.observation.capture.flex import Flex
from regard.observation.capture.geometric import EdgeSoftmax
from regard.observation.capture.huggingface import EagerFlex, EagerForward
from regard.observation.capture.identity import Substitute, untouched
from regard.observation.capture.interception import Adapter, PatchPoint
from regard.observation.capture.mechanisms import adapter_of
from regard.observation.capture.torch_calls import (
    MultiheadFunction,
    NativeEncoderLayer,
    NativeMultihead,
    ScaledDotProduct,
)
from regard.observation.capture.written.patch_points import recording_points

# Cached, because searching thousands of Python modules takes milliseconds.
_FOUND: dict[tuple[frozenset[str], int], list[PatchPoint]] = {}
_MOST = 64
_FUNCTIONS = (FunctionType, BuiltinFunctionType, Substitute)


def patch_points(model: nn.Module | None, parts: Sequence[nn.Module] = ()) -> list[PatchPoint]:
    """The functions to intercept for a model made of `parts`; without a model, those that any code may call."""
    found = [
        PatchPoint(torch.nn.functional, "scaled_dot_product_attention", ScaledDotProduct()),
        # Where torch looks up the function that it passes to __torch_function__.
        PatchPoint(torch._C._nn, "scaled_dot_product_attention", ScaledDotProduct()),
        PatchPoint(torch.nn.functional, "multi_head_attention_forward", MultiheadFunction()),
        PatchPoint(torch, "_native_multi_head_attention", NativeMultihead()),
        PatchPoint(torch, "_transformer_encoder_layer_fwd", NativeEncoderLayer()),
        PatchPoint(flex_module, "flex_attention", Flex()),
        PatchPoint(dispatch, "attend", AttendAdapter()),
        PatchPoint(regard, "attend", AttendAdapter()),
    ]
    transformers = sys.modules.get("transformers.integrations.flex_attention")
    if transformers is not None and hasattr(transformers, "compile_friendly_flex_attention"):
        found.append(PatchPoint(transformers, "compile_friendly_flex_attention", EagerFlex()))
    if model is not None:
        found += [PatchPoint(type(model), name, entrance=True) for name in ("__call__", "forward")]
        if "forward" in vars(model):
            found.append(PatchPoint(model, "forward", entrance=True))
    kinds = {type(part): part for part in parts}
    adapters = {kind: adapter for kind, part in kinds.items() if (adapter := _of_class(part))}
    found += [PatchPoint(kind, "forward", adapter) for kind, adapter in adapters.items()]
    found += recording_points(kinds, parts, adapters)
    for part in parts:  # a module may hold a function as an attribute
        held = [name for name, content in vars(part).items() if isinstance(content, _FUNCTIONS)]
        found += _held(part, held) if held else []
        if "forward" in vars(part) and _wraps_own_forward(part) and (adapter := _of_class(part)):
            found.append(PatchPoint(part, "forward", adapter))
    return [*found, *_imported(frozenset(base.__module__ for kind in kinds for base in kind.__mro__))]


def _of_class(module: nn.Module) -> Adapter | None:
    """The adapter for modules that write attention out, or whose weights are not those of one call."""
    x_transformers = sys.modules.get("x_transformers.attend")
    if x_transformers is not None and isinstance(module, x_transformers.Attend):
        return fused_twins.XTransformersAttend()
    if isinstance(getattr(module, "fused_attn", None), bool) and hasattr(module, "num_heads"):
        return fused_twins.FusedTwin("fused_attn")
    return adapter_of(module)


def _wraps_own_forward(module: nn.Module) -> bool:
    """Whether the forward that a module instance holds wraps the forward of its class, as accelerate's hooks do."""
    held: Any = inspect.unwrap(vars(module)["forward"])
    while isinstance(held, functools.partial):
        held = inspect.unwrap(held.func)
    own = inspect.unwrap(type(module).forward)
    return inspect.unwrap(getattr(held, "__func__", held)) is own


def _imported(homes: frozenset[str]) -> list[PatchPoint]:
    """Names under which Python modules hold these functions: `from torch.nn.functional import …`.

    A Python module that defines a class of the model (one of `homes`) is searched for other names (`as sdpa`), for
    compiled FlexAttention, and for the eager attention of a family of models. All others are searched only for the
    functions' own names. The result is cached until another Python module is imported; `__main__`, where functions are
    redefined interactively, is always searched.
    """
    here = sys.modules.get("__main__")
    found = [] if here is None else _held(here, vars(here))
    key = (homes, len(sys.modules))
    if key not in _FOUND:
        if len(_FOUND) > _MOST:
            _FOUND.clear()
        _FOUND[key] = []
        names = [function.__name__ for function in _originals()]
        for home, module in list(sys.modules.items()):
            # Those of torch and of our own package are on the list already.
            if home.partition(".")[0] in ("torch", "regard", "regard_workbench", "__main__") or not isinstance(
                module, ModuleType
            ):
                continue
            content = vars(module)
            _FOUND[key] += _held(module, content if home in homes else [name for name in names if name in content])
    return found + [point for point in _FOUND[key] if hasattr(point.owner, point.name)]


def _held(module: ModuleType | nn.Module, names: Iterable[str]) -> list[PatchPoint]:
    originals, content, found = _originals(), vars(module), []
    for name in list(names):
        held = content[name]
        if not callable(held) or isinstance(held, type):
            continue
        adapter: Adapter | None = None
        if name == "eager_attention_forward":
            adapter = EagerForward()
        else:
            plain = getattr(
                untouched(held), "_torchdynamo_orig_callable", untouched(held)
            )  # the function before torch.compile
            try:
                adapter = originals.get(untouched(plain))
            except TypeError:  # not hashable, so it is none of them
                continue
        if adapter is not None:
            found.append(PatchPoint(module, name, adapter))
    return found


def _originals() -> dict[Any, Adapter]:
    """The original functions, with their adapters."""
    found: dict[Any, Adapter] = {
        untouched(torch.nn.functional.scaled_dot_product_attention): ScaledDotProduct(),
        untouched(flex_module.flex_attention): Flex(),
        untouched(dispatch.attend): AttendAdapter(),
    }
    geometric = sys.modules.get("torch_geometric.utils")
    if geometric is not None:
        found[untouched(geometric.softmax)] = EdgeSoftmax()
    return found
