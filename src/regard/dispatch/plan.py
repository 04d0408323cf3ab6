"""The plan: which implementation runs a request, and why not the others.

A plan depends on structure, shapes, dtypes, devices and modes, never on the contents of a tensor, so it is made once
for each signature and cached.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd import forward_ad

from regard.errors import BadType, Unsupported, unknown_name
from regard.formula.call import Call
from regard.formula.request import FEW_QUERIES, Request
from regard.implementations import HAS_TRITON, reference, sdpa, tiled
from regard.masks.positional import CausalMask, FullMask
from regard.support.arguments import is_fake_or_meta
from regard.support.autocast import autocasts
from regard.support.differentiate import transforming
from regard.support.tracing import only_standard_operators
from regard.values.value import Value


class Implementation(Protocol):
    """The interface of a module in `regard.implementations`."""

    @property
    def name(self) -> str:
        """The name users give as `impl`."""

    @property
    def refuse(self) -> Callable[[Request], str | None]:
        """Returns why it cannot run a request and keep the promises, or None."""

    @property
    def run(self) -> Callable[[Request], tuple[Tensor, Tensor | None]]:
        """Returns the output (b,h,q,v) of a request and, if it wants that, its log-sum-exp (b,h,q)."""


NAMES = ("reference", "tiled", "sdpa", "flex", "triton")
FEW_ELEMENTS = 2**24  # of the keys: 64 MiB with the values, read faster than torch's function starts its kernel
_LOADED: dict[str, Implementation] = {"reference": reference, "tiled": tiled, "sdpa": sdpa}
_NEVER_AUTOMATIC = {
    "reference": "it needs memory quadratic in the length; tiled gives the same numbers in linear memory",
    "flex": "it compiles for seconds and is only used when asked for by name",
}
_REASONS = {
    "sdpa": "torch's fused kernel, the fastest for a plain dot product under softmax",
    "tiled": "strips in linear memory; nothing faster can run this request",
    "reference": "the plain formula",
    "flex": "FlexAttention, compiled",
    "triton": "fused kernels with the mask, the bias and the score inside",
}


@dataclass(frozen=True)
class Plan:
    """The implementation chosen for a request, the reason, and why each other one was rejected."""

    impl: str
    reason: str
    rejected: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{self.impl}: {self.reason}"]
        width = max((len(name) for name in self.rejected), default=0)
        lines += [f"  not {name.ljust(width)}  {why}" for name, why in self.rejected.items()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        from regard.support.display import html_table

        rows = [(self.impl, "chosen", self.reason)]
        rows += [(name, "not taken", why) for name, why in self.rejected.items()]
        return html_table(("implementation", "", "why"), rows)


def implementation(name: str) -> Implementation:
    """The implementation of that name; `flex` and `triton` are imported on first use."""
    if name == "flex":  # imports torch's compiler
        from regard.implementations import flex

        return flex
    if name == "triton":
        from regard.implementations import triton

        return triton
    return _LOADED[name]


def make(request: Request, impl: str, complete: bool = False) -> Plan:
    """Choose an implementation. `complete`: also ask those that the choice does not need, for `explain`."""
    if not isinstance(impl, str):
        raise BadType(f"impl: expected a name, got {impl!r}. Names: auto, {', '.join(NAMES)}.")
    if impl == "auto":
        return _automatic(request, complete)
    if impl not in NAMES:
        raise unknown_name("impl", impl, ("auto", *NAMES))
    why = _refusal(impl, request)
    if why is not None:
        raise Unsupported(f"impl={impl!r} cannot run this request: {why}. impl='auto' runs every valid request.")
    rejected = {name: "another was asked for by name" for name in NAMES if name != impl} if complete else {}
    return Plan(impl, "asked for by name", rejected)


def _refusal(name: str, request: Request) -> str | None:
    if name == "triton" and not HAS_TRITON:
        return "Triton is not installed; pip install triton brings it, on Linux"
    return implementation(name).refuse(request)


def _only_by_name(name: str, request: Request) -> str | None:
    """Why `auto` does not take an implementation that can run a request; None for most."""
    ask: Callable[[Request], str | None] | None = getattr(implementation(name), "only_by_name", None)
    return None if ask is None else ask(request)


def _automatic(request: Request, complete: bool) -> Plan:
    chosen, rejected = "", {}
    for name in _fastest_first(request):
        why = _refusal(name, request) or _only_by_name(name, request) if not chosen else None
        if why is not None:
            rejected[name] = why
        elif not chosen:
            chosen = name
        if chosen and not complete:
            break
    if complete:
        for name in NAMES:
            if name != chosen and name not in rejected:
                refused = _refusal(name, request) or _only_by_name(name, request)
                rejected[name] = refused or _NEVER_AUTOMATIC.get(name) or f"slower than {chosen} for such requests"
    return Plan(chosen, _reason(chosen), rejected)


def _reason(chosen: str) -> str:
    """Why an implementation is chosen, and what slows it down here, if it knows of something."""
    remark: Callable[[], str | None] | None = getattr(implementation(chosen), "remark", None)
    slowdown = None if remark is None else remark()
    return _REASONS[chosen] if slowdown is None else f"{_REASONS[chosen]}; {slowdown}"


def _fastest_first(request: Request) -> tuple[str, ...]:
    """The implementations `auto` tries, in the order of their speed as docs/results.md shows it."""
    if only_standard_operators():
        return ("reference",)  # in torch's operators, and without a case for short rows: one graph for every length
    if request.query.device.type != "cuda":
        return ("sdpa", "tiled", "reference")
    built_in = request.mask is None or isinstance(request.mask, (FullMask, CausalMask))
    if built_in and request.bias is None:
        if _decodes_faster(request):
            return ("triton", "sdpa", "tiled", "reference")
        return ("sdpa", "triton", "tiled", "reference")
    # torch's kernels compute hidden pairs of any other mask and read a bias from memory; ours do neither.
    return ("triton", "sdpa", "tiled", "reference")


def _decodes_faster(request: Request) -> bool:
    """Whether reading all keys and values takes less time than torch's function takes to start its kernel.

    Ours is started by two calls of Triton's C function (`triton/decode_calls.py`). Where the user has disabled some of
    torch's kernels, a choice among them was meant.
    """
    mask = request.mask
    aligned = not isinstance(mask, CausalMask) or (mask.offset is None and mask.align == "bottom-right")
    half = request.query.dtype in (torch.float16, torch.bfloat16)
    # First: while torch traces, a test of a size would become a guard on it.
    if torch.compiler.is_compiling() or torch._C._is_tracing() or request.needs_grad or request.dropout > 0:
        return False
    if is_fake_or_meta(request.query) or transforming():  # where the launches could not be tried
        return False
    if not (HAS_TRITON and aligned and half and request.key.numel() <= FEW_ELEMENTS and all(_kernels_allowed())):
        return False
    from regard.implementations.triton.launch import raw_launches

    few = request.sizes[2] <= FEW_QUERIES
    return few and raw_launches.refusal(request.query.device) is None


def signature(call: Call) -> tuple[Any, ...]:
    """Everything a plan may depend on, hashable and cheap."""
    query, key, value = call.query, call.key, call.value
    score, normalize, dropout, device = call.score, call.normalize, call.dropout, query.device
    return (
        query.shape,
        query.dtype,
        device,
        query.layout,
        query.requires_grad,
        key.shape,
        key.dtype,
        key.device,
        key.layout,
        key.requires_grad,
        value.shape,
        value.dtype,
        value.device,
        value.layout,
        value.requires_grad,
        score if isinstance(score, str) else _part(score),
        None if call.mask is None else _part(call.mask),
        None if call.bias is None else _part(call.bias),
        normalize if isinstance(normalize, str) else _part(normalize),
        None if call.sink is None else _part(call.sink),
        call.scale is None,
        _kind_of_dropout(dropout),
        call.return_logsumexp,
        call.impl,
        torch.is_grad_enabled(),
        forward_ad._current_level,
        transforming(),
        is_fake_or_meta(query),
        torch._C._is_any_autocast_enabled() and autocasts(device) and torch.get_autocast_dtype(device.type),
        torch.are_deterministic_algorithms_enabled(),
        device.type == "cpu" or (torch.get_float32_matmul_precision(), *_kernels_allowed()),
    )


def _kind_of_dropout(dropout: object) -> tuple[type, int]:
    """None, some, all, or not a share."""
    if not isinstance(dropout, (int, float)):
        return type(dropout), -1
    return type(dropout), (dropout > 0) + (dropout >= 1) if 0 <= dropout <= 1 else -1


def _kernels_allowed() -> tuple[bool, ...]:
    """Which of torch's fused kernels its switches (torch.nn.attention.sdpa_kernel) allow on a GPU."""
    cuda = torch.backends.cuda
    return cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.cudnn_sdp_enabled()


def _part(given: Any) -> tuple[Any, ...]:
    if isinstance(given, Tensor):
        return (given.shape, given.dtype, given.device, given.layout, given.requires_grad)
    if isinstance(given, Value):
        return (given.structure(), *[tensor.requires_grad for tensor in given.tensors])
    return (id(given),)  # of a wrong type: the checks raise for it, and no plan is cached
