"""Substitutes for functions, which compare equal to the functions they replace.

An intercepted function is replaced by a `Substitute` under all of its names. Tensor subclasses and torch function modes
are given a function by torch and compare it: `func is F.scaled_dot_product_attention` (`CausalBias`),
`func is torch._C._nn.scaled_dot_product_attention` (nested tensors), or `HANDLED[func]` (most others). Three rules make
these comparisons give the same result as without an observer:

- one function has one substitute for all of its names, so that two names of it stay identical;
- a substitute equals the function it replaces and has its hash, so that it is found in a table;
- while a call runs whose arguments may compare functions, all names of the called function hold the original.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._device import DeviceContext

from regard.observation.capture.written.active import Recorder

Function = Callable[..., Any]

# Tables of torch's functions that are built on first use. Built while substitutes are installed, they would hold them.
_TABLES = (
    ("torch.overrides", "get_ignored_functions"),
    ("torch.overrides", "get_testing_overrides"),
    ("torch.overrides", "_get_overridable_functions"),
    ("torch._dynamo.trace_rules", "get_torch_obj_rule_map"),
    ("torch._dynamo.variables.torch", "get_overridable_functions"),
)


class Substitute:
    """Replaces a function of a Python module; `run` handles a call."""

    # Not in __dict__: functools.wraps would copy them to wrappers around this one.
    __slots__ = ("__dict__", "__weakref__", "original", "run")

    def __init__(self, original: Function, run: Function) -> None:
        functools.update_wrapper(self, original)
        self.original, self.run = original, run

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return self.original(*args, **kwargs)
        return self.run(sys._getframe(1), args, kwargs)

    def __get__(self, instance: Any, kind: type | None = None) -> Any:
        """Bind to an instance if the function would: Python functions do, C++ functions do not."""
        bind = getattr(type(self.original), "__get__", None)
        return self if bind is None or instance is None else functools.partial(self, instance)

    def __eq__(self, other: object) -> bool:
        return self.original is untouched(other)

    def __hash__(self) -> int:
        return hash(self.original)

    def __reduce__(self) -> str | tuple[Function, tuple[Any, ...]]:
        """Pickle by name, as functions are; unpickling gives the original function."""
        home, name = getattr(self, "__module__", None), getattr(self, "__name__", "")
        if getattr(sys.modules.get(str(home)), name, None) is self:
            return name
        return untouched, (self.original,)

    def __deepcopy__(self, memo: dict[int, Any]) -> Function:
        return self.original  # a copied model is not observed


def untouched(function: Any) -> Any:
    """The original of a function, whether or not it is replaced."""
    return function.original if isinstance(function, Substitute) else function


def may_ask(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the type of an argument, or a function mode, will be given the function."""
    if not torch.overrides.has_torch_function((*args, *kwargs.values())):
        return False
    # Two modes never compare functions: torch.set_default_device, and our own recorder.
    modes = torch.overrides._get_current_function_mode_stack()
    return any(not isinstance(mode, (DeviceContext, Recorder)) for mode in modes) or any(
        True for _ in _overrides(args, kwargs)
    )


def is_symbolic(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an argument is a tracer's proxy for a tensor; capturing it would be traced as well."""
    return any(not isinstance(argument, torch.Tensor) for argument in _overrides(args, kwargs))


def _overrides(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Any]:
    for argument in (*args, *kwargs.values()):
        override = None if type(argument) is torch.Tensor else getattr(type(argument), "__torch_function__", None)
        if override is not None and override is not torch._C._disabled_torch_function_impl:
            yield argument


def filled_tables() -> set[tuple[str, str]]:
    """The tables of torch's functions that have been built."""
    return {
        (home, name)
        for home, name in _TABLES
        if (table := getattr(sys.modules.get(home), name, None)) is not None
        and hasattr(table, "cache_info")
        and table.cache_info().currsize
    }


def forget_tables(before: set[tuple[str, str]]) -> None:
    """Drop the tables built since; torch rebuilds them when it needs them."""
    for home, name in filled_tables() - before:
        getattr(sys.modules[home], name).cache_clear()
