"""What the core asks while torch traces it: constants of a trace, and whether only torch's own operators may be used.

An operator of regard (`regard::tiled`, …) is unknown outside of Python. While a model is exported to ONNX, or traced
inside `standard_operators()`, everything runs by its formula in plain torch instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., Any])
_VMAP_MODE = torch._C._dispatch_key_parse("VmapMode")  # gradients are computed for several at once
_ASKED: ContextVar[bool] = ContextVar("standard_operators", default=False)


def constant_when_traced(function: Function) -> Function:
    """Let `torch.compile` call `function` while tracing and treat its result as a constant.

    The same as torch.compiler.assume_constant_result, which would import the compiler only to set this attribute.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@contextmanager
def standard_operators() -> Iterator[None]:
    """What is traced inside (`torch.export.export`) uses none of regard's operators, so that it runs without regard.

    `torch.onnx.export` does not need it.
    """
    token = _ASKED.set(True)
    try:
        yield
    finally:
        _ASKED.reset(token)


def unobserved() -> bool:
    """Whether torch computes at once what it is called with: nothing traces, transforms, batches or watches it."""
    return not (
        torch.compiler.is_compiling()
        or torch._C._is_tracing()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._functorch.maybe_current_level() is not None
        or torch._C._dispatch_tls_is_dispatch_key_included(_VMAP_MODE)
    )


def only_standard_operators() -> bool:
    """Whether torch traces for other programs, where regard's own operators are unknown."""
    return (torch.compiler.is_compiling() or torch._C._is_tracing()) and _asked()


def exporting() -> bool:
    """Whether `torch.export` traces, whose one graph serves every length: it must not depend on a length's value."""
    return _inside_export() or only_standard_operators()


@constant_when_traced
def _inside_export() -> bool:
    """torch.compiler.is_exporting(), which older torch answers with True inside of any `torch.compile`."""
    return torch.compiler.is_exporting()


@constant_when_traced
def _asked() -> bool:
    return _ASKED.get() or torch.onnx.is_in_onnx_export()
