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
    points = [
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
        points.append(PatchPoint(transformers, "compile_friendly_flex_attention", EagerFlex()))
    if model is not None:
        points += [PatchPoint(type(model), name, entrance=True) for name in ("__call__", "forward")]
        if "forward" in vars(model):
            points.append(PatchPoint(model, "forward", entrance=True))
    kinds = {type(submodule): submodule for submodule in parts}
    adapters = {kind: adapter for kind, submodule in kinds.items() if (adapter := _of_class(submodule))}
    points += [PatchPoint(kind, "forward", adapter) for kind, adapter in adapters.items()]
    points += recording_points(kinds, parts, adapters)
    for submodule in parts:  # a module may hold a function as an attribute
        names = [name for name, content in vars(submodule).items() if isinstance(content, _FUNCTIONS)]
        points += _held(submodule, names) if names else []
        if "forward" in vars(submodule) and _wraps_own_forward(submodule) and (adapter := _of_class(submodule)):
            points.append(PatchPoint(submodule, "forward", adapter))
    return [*points, *_imported(frozenset(base.__module__ for kind in kinds for base in kind.__mro__))]


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
    forward: Any = inspect.unwrap(vars(module)["forward"])
    while isinstance(forward, functools.partial):
        forward = inspect.unwrap(forward.func)
    class_forward = inspect.unwrap(type(module).forward)
    return inspect.unwrap(getattr(forward, "__func__", forward)) is class_forward


def _imported(homes: frozenset[str]) -> list[PatchPoint]:
    """Names under which Python modules hold these functions: `from torch.nn.functional import …`.

    A Python module that defines a class of the model (one of `homes`) is searched for other names (`as sdpa`), for
    compiled FlexAttention, and for the eager attention of a family of models. All others are searched only for the
    functions' own names. The result is cached until another Python module is imported; `__main__`, where functions are
    redefined interactively, is always searched.
    """
    main = sys.modules.get("__main__")
    points = [] if main is None else _held(main, vars(main))
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
    return points + [point for point in _FOUND[key] if hasattr(point.owner, point.name)]


def _held(module: ModuleType | nn.Module, names: Iterable[str]) -> list[PatchPoint]:
    originals, content, points = _originals(), vars(module), []
    for name in list(names):
        function = content[name]
        if not callable(function) or isinstance(function, type):
            continue
        adapter: Adapter | None = None
        if name == "eager_attention_forward":
            adapter = EagerForward()
        else:
            plain = getattr(
                untouched(function), "_torchdynamo_orig_callable", untouched(function)
            )  # the function before torch.compile
            try:
                adapter = originals.get(untouched(plain))
            except TypeError:  # not hashable, so it is none of them
                continue
        if adapter is not None:
            points.append(PatchPoint(module, name, adapter))
    return points


def _originals() -> dict[Any, Adapter]:
    """The original functions, with their adapters."""
    adapters: dict[Any, Adapter] = {
        untouched(torch.nn.functional.scaled_dot_product_attention): ScaledDotProduct(),
        untouched(flex_module.flex_attention): Flex(),
        untouched(dispatch.attend): AttendAdapter(),
    }
    geometric = sys.modules.get("torch_geometric.utils")
    if geometric is not None:
        adapters[untouched(geometric.softmax)] = EdgeSoftmax()
    return adapters
