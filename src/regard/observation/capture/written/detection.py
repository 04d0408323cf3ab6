"""Detecting modules that may write their attention out, from the bytecode of their classes.

A class is read once: its `forward`, the methods it calls, and the functions of the same package that it calls. Code
that names a softmax may attend, together with its parts: one may hold the softmax, another the product with values.
Nothing is imported or run.
"""

from __future__ import annotations

import dis
import inspect
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

# Functions with their own adapter: calling one is not writing attention out.
KNOWN = ("eager_attention_forward", "scaled_dot_product_attention", "multi_head_attention_forward", "flex_attention")
INTERFACES = (*KNOWN, "ALL_ATTENTION_FUNCTIONS", "attention_interface")
PRODUCTS = ("matmul", "bmm", "baddbmm", "einsum", "mm")
CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
ATTENTION = re.compile(r"attn|attention|attend", re.IGNORECASE)
_DEPTH = 4  # depth to which calls are followed from `forward`
_MOST = 64  # elements of a container that are inspected
_SOFTMAX = re.compile(r"(?<!log_)softmax", re.IGNORECASE)
# Operators in bytecode, the opcode and its argument, by the names of their functions.
_OPERATORS = {
    bytes((dis.opmap["BINARY_OP"], kind)): name
    for name, kinds in {"matmul": (4, 17), "div": (11, 24)}.items()
    for kind in kinds
}
_NAMES: WeakKeyDictionary[type, frozenset[str]] = WeakKeyDictionary()
# Their fast paths are not taken while a torch function mode is active.
_FAST = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)


def recorded_kinds(
    kinds: Mapping[type[nn.Module], nn.Module], adapted: Collection[type]
) -> tuple[set[type], set[type]]:
    """The classes of modules to record, and those of their helpers, which are recorded as parts of them.

    A class is recorded if its code holds a softmax and a product, or it and its parts do; a softmax that belongs to
    nothing larger is recorded by itself. `kinds`: a module of each class; `adapted`: classes that have an adapter.
    """
    writing = {kind for kind, module in kinds.items() if kind not in adapted and writes_out(module)}
    recorded = {kind for kind in writing if _multiplies(kind) or not _normalizes(kinds[kind])}
    helpers: set[type] = set()
    for kind, module in kinds.items():
        if kind in recorded or kind in adapted or isinstance(module, CONTAINERS) or _home(kind) in ("torch", "regard"):
            continue
        helper_kinds = {type(helper) for helper in _parts(module)} - recorded - set(adapted)
        softmax = {helper for helper in helper_kinds if helper in writing}
        products = {helper for helper in helper_kinds if _home(helper) != "torch" and _multiplies(helper)}
        if (kind in writing or softmax) and (_multiplies(kind) or products):
            recorded.add(kind)
            helpers |= softmax | products
    return recorded | (writing - helpers), helpers - recorded


def _parts(module: nn.Module) -> Iterator[nn.Module]:
    """The parts of a module, those inside containers in place of the containers."""
    for submodule in module._modules.values():
        if isinstance(submodule, CONTAINERS):
            yield from _parts(submodule)
        elif submodule is not None:
            yield submodule


def _multiplies(kind: type[nn.Module]) -> bool:
    """Whether code computes a product of tensors, perhaps as a sum of products of elements."""
    return not names_in(kind).isdisjoint((*PRODUCTS, "sum"))


def _normalizes(module: nn.Module) -> bool:
    """Whether code names a softmax, or an exponential over its sum."""
    names = names_in(type(module))
    logarithms = any("log_softmax" in name or name == "logsumexp" for name in names)
    by_hand = "exp" in names and (logarithms or {"sum", "div"} <= names)
    return by_hand or any(_SOFTMAX.search(name) for name in names)


def writes_out(module: nn.Module) -> bool:
    """Whether a module's own code may compute a softmax and mix values with it.

    Also code that reaches torch's attention where no name can be patched: through a dict, a partial, a default
    argument, or the operator itself. It is recorded too, and the recorder recognises the function.
    """
    kind = type(module)
    if _home(kind) in ("torch", "regard"):
        return False
    names = names_in(kind)
    if _normalizes(module) or ("aten" in names and any("attention" in name for name in names)):
        return True
    captured = _captured(kind.forward)
    reachable = (*_parts(module), *vars(module).values(), *captured)
    return (
        any(_computes_attention(candidate) for candidate in reachable)
        or any(_named(candidate, KNOWN) for candidate in captured)
        or _has_own_interface(module, names)
    )


def looks_like_attention(kind: type[nn.Module]) -> bool:
    """Whether the name of a class suggests attention."""
    return ATTENTION.search(kind.__name__) is not None


def should_be_seen(module: nn.Module) -> bool:
    """Whether a module attends according to its name and code, so that a missing capture deserves a warning."""
    if isinstance(module, nn.MultiheadAttention):
        return True
    if _home(type(module)) == "torch" or not looks_like_attention(type(module)):
        return False
    names = names_in(type(module))
    return any(name in names for name in (*INTERFACES, *PRODUCTS)) or writes_out(module)


def takes_own_path(module: nn.Module) -> bool:
    """Whether a module takes another path while a torch function mode is active."""
    return isinstance(module, _FAST) or module._compiled_call_impl is not None or "forward" in vars(module)


def names_in(kind: type[nn.Module]) -> frozenset[str]:
    """Every name that the forward pass of a class mentions."""
    names = _NAMES.get(kind)
    if names is None:
        names = _NAMES[kind] = frozenset(_names(kind, kind.forward, set(), _DEPTH))
    return names


def _names(kind: type, function: Any, met: set[int], depth: int) -> Iterator[str]:
    function = _plain(function)
    if function is None or id(function) in met or depth < 0:
        return
    met.add(id(function))
    for name in _mentioned(function.__code__):
        yield name
        if name in KNOWN:
            continue
        methods = [vars(base)[name] for base in kind.__mro__ if name in vars(base)]  # super() may call any of them
        if not methods and _computes_attention(function.__globals__.get(name), 1):
            yield "softmax"
        for called in map(_plain, methods or [function.__globals__.get(name)]):
            if called is not None and _home(called) == _home(kind):
                yield from _names(kind, called, met, depth - 1)


def _plain(function: Any) -> FunctionType | None:
    """The Python function behind decorators, static and class methods."""
    if isinstance(function, (staticmethod, classmethod)):
        function = function.__func__
    if not isinstance(function, (FunctionType, MethodType)):
        return None
    function = inspect.unwrap(function)
    function = getattr(function, "__func__", function)
    return function if isinstance(function, FunctionType) else None


def _mentioned(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    yield from (name for operator, name in _OPERATORS.items() if operator in code.co_code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _mentioned(constant)


def _captured(function: Any) -> list[Any]:
    """The default arguments of a function and the contents of its closure."""
    plain = _plain(function)
    if plain is None:
        return []
    cells = [cell.cell_contents for cell in plain.__closure__ or () if _filled(cell)]
    return [*(plain.__defaults__ or ()), *(plain.__kwdefaults__ or {}).values(), *cells]


def _filled(cell: CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _computes_attention(held: Any, depth: int = 2) -> bool:
    """Whether an object is a softmax, or a partial or container with torch's attention."""
    if isinstance(held, partial):
        return _computes_attention(held.func) or _named(held.func, KNOWN)
    if isinstance(held, nn.Softmax):
        return True
    if isinstance(held, (dict, list, tuple)) and depth and len(held) <= _MOST:
        members = held.values() if isinstance(held, dict) else held
        return any(_named(member, KNOWN) or _computes_attention(member, depth - 1) for member in members)
    return _named(held, ("softmax",))


def _named(held: Any, names: Collection[str]) -> bool:
    return isinstance(held, (FunctionType, BuiltinFunctionType)) and held.__name__ in names


def _has_own_interface(module: nn.Module, names: frozenset[str]) -> bool:
    """Whether a Hugging Face module uses an attention function registered outside transformers."""
    if "ALL_ATTENTION_FUNCTIONS" not in names:
        return False
    chosen = getattr(getattr(module, "config", None), "_attn_implementation", None)
    table = getattr(sys.modules.get("transformers.modeling_utils"), "ALL_ATTENTION_FUNCTIONS", {})
    function = _plain(table.get(chosen)) if isinstance(chosen, str) and chosen in table else None
    return function is not None and _home(function) != "transformers"


def _home(thing: Any) -> str:
    name: str = getattr(thing, "__module__", None) or ""
    return name.partition(".")[0]


def compiled(module: nn.Module) -> bool:
    """Whether a module's forward pass is compiled: the module, its call, or its instance's forward."""
    return (
        isinstance(module, torch._dynamo.eval_frame.OptimizedModule)
        or module._compiled_call_impl is not None
        or hasattr(vars(module).get("forward"), "_torchdynamo_orig_callable")
    )
