"""A loop over positions: a Python loop, or one node of a traced graph that serves every length.

`torch.export` unrolls a Python loop, so that each length needs a graph of its own. `torch.scan` is one node for any
number of steps, which ONNX knows as `Scan`. `torch.compile` keeps the loop: it compiles a scan, with its backward pass,
for longer than a few unrolled lengths, and not every version of its back-end knows one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from regard.support.tracing import exporting

Tensors = Sequence[Tensor]
Step = Callable[[Tensors, Tensors], tuple[Tensors, Tensors]]  # carry, inputs of a step → next carry, outputs


def run_steps(step: Step, carry: Tensors, inputs: Tensors, reverse: bool = False) -> tuple[Tensors, Tensors]:
    """Run `step` over the first axis of the inputs; return the carry after the last step and the stacked outputs.

    There must be a step: without one the shapes of the outputs are unknown. Two results of a step must not be one
    tensor. `reverse`: from the last entry to the first, with the outputs in the order of the inputs.
    """
    if traced_with_any_length(inputs[0].shape[0]):
        return _scanned(step, carry, inputs, reverse)
    outputs = []
    indices = range(inputs[0].shape[0])
    for index in reversed(indices) if reverse else indices:
        carry, output = step(carry, [tensor[index] for tensor in inputs])
        outputs.append(output)
    if reverse:
        outputs.reverse()
    return carry, [torch.stack(list(column)) for column in zip(*outputs, strict=True)]


def traced_with_any_length(length: int) -> bool:
    """Whether a graph is exported that has to serve other lengths, too."""
    return exporting() and not isinstance(length, int)


def _scanned(step: Step, carry: Tensors, inputs: Tensors, reverse: bool) -> tuple[Tensors, Tensors]:
    from torch._higher_order_ops.scan import scan

    def body(carry: Tensors, inputs: Tensors) -> tuple[list[Tensor], list[Tensor]]:
        after, output = step(carry, inputs)
        # A result may not be a view of an argument or of another result.
        return [tensor.clone() for tensor in after], [tensor.clone() for tensor in output]

    first = [tensor.clone(memory_format=torch.contiguous_format) for tensor in carry]
    after, outputs = scan(body, first, list(inputs), reverse=reverse)
    return after, outputs
