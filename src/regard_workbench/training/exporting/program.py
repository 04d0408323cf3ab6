"""A model as a graph of torch's own operators that serves every batch size and length (`torch.export`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx.experimental import _config as symbolic

from regard.errors import Unsupported
from regard.support.tracing import standard_operators


def trace(module: nn.Module, inputs: Sequence[Tensor]) -> ExportedProgram:
    """The graph of a module in evaluation mode. An axis stays free unless the module ties it to one size."""
    # The third axis of ids is a length, too (the letters of a word); that of numbers is a width, which never changes.
    axes = [range(min(tensor.dim(), 2) if tensor.is_floating_point() else tensor.dim()) for tensor in inputs]
    free = tuple(dict.fromkeys(tensor_axes, Dim.AUTO) for tensor_axes in axes)
    try:
        oblivious = symbolic.patch(backed_size_oblivious=True)  # type: ignore[attr-defined]
        with torch.no_grad(), standard_operators(), oblivious:
            exported = torch.export.export(
                _Positional(module.eval()),
                tuple(inputs),
                dynamic_shapes=(free,),
                prefer_deferred_runtime_asserts_over_guards=True,
            )
            _allow_one(exported)
            return exported
    except Exception as trouble:
        raise Unsupported(f"export: torch cannot trace this model: {first_line(trouble)}") from trouble


_NOT_ONE = re.compile(r"expression Ne\(.+, 1\)")


def _allow_one(program: ExportedProgram) -> None:
    """Remove assertions that the size of an input, or a number of segments in it, is not 1.

    torch adds one wherever a size of 1 would be broadcast, which gives the same result here. `export_run` compares
    batches of one example.
    """
    for module in program.graph_module.modules():  # the body of a scan is a part of its own
        if not isinstance(module, torch.fx.GraphModule):
            continue
        for node in list(module.graph.nodes):
            if node.target is torch.ops.aten._assert_scalar.default and _NOT_ONE.search(str(node.args[1])):
                module.graph.erase_node(node)
        module.graph.eliminate_dead_code()
        module.recompile()


class _Positional(nn.Module):
    """A module called with any number of tensors, for which torch takes one form of `dynamic_shapes`."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *tensors: Tensor) -> Any:
        return self.module(*tensors)


def free_axes(program: ExportedProgram) -> list[list[int]]:
    """The axes of each input that may have any size."""
    names = set(program.graph_signature.user_inputs)
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder" and node.name in names]
    return [
        [axis for axis, size in enumerate(node.meta["val"].shape) if _is_free(program, size)] for node in placeholders
    ]


def _is_free(program: ExportedProgram, size: int | torch.SymInt) -> bool:
    """Whether a size is a symbol of the graph; an unrolled loop ties it to one value but leaves it one."""
    if not isinstance(size, torch.SymInt):
        return False
    bounds = program.range_constraints.get(size.node.expr)
    return bounds is None or bool(bounds.lower != bounds.upper)


def first_line(trouble: BaseException) -> str:
    """The first line of an error that says something, of the innermost cause."""
    while trouble.__cause__ is not None:
        trouble = trouble.__cause__
    lines = [line.strip() for line in str(trouble).splitlines() if line.strip()]
    return f"{type(trouble).__name__}: {lines[0][:300] if lines else ''}"
