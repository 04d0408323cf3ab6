"""What a training step of a small model is made of: the kernels that it launches, and what remains of torch."""

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

pytest.importorskip("triton")

from regard import models
from regard.nn.fused_memory import gradient_kernels, read_kernels, static_kernels, write_kernels
from regard.nn.fused_rows import head_kernels, pooled_kernels, short_kernels, vector_kernels
from regard.nn.fused_rows import kernels as row_kernels
from regard.tasks.answers import OneOf
from regard.tasks.batch import Batch
from regard.tasks.problem import Problem
from regard.tasks.streams import Vectors
from tests.triton.test_fused_head import step_of
from tests.triton.test_fused_rows import DEVICE, Counted, kernels

assert kernels  # a fixture
NAMES = {
    "embed_vectors": vector_kernels, "vector_gradients": vector_kernels, "rows_forward": row_kernels,
    "rows_backward": row_kernels, "weight_gradients": row_kernels, "static_forward": static_kernels,
    "static_backward": static_kernels, "write_forward": write_kernels, "write_backward": write_kernels,
    "read_forward": read_kernels, "read_backward": read_kernels, "memory_gradients": gradient_kernels,
    "short_forward": short_kernels, "short_backward": short_kernels, "pooled_loss": pooled_kernels,
    "head_loss": head_kernels, "add_parts": head_kernels,
}  # fmt: skip
ENDS = {"embed_vectors": 1, "vector_gradients": 1, "pooled_loss": 1, "add_parts": 1, "weight_gradients": 1}
STEPS = {
    "static-transformer": {
        "rows_forward": 3, "rows_backward": 3, "static_forward": 2, "static_backward": 2, "memory_gradients": 1
    },
    "dynamic-transformer": {
        "rows_forward": 3, "rows_backward": 3, "write_forward": 2, "write_backward": 2, "read_forward": 2,
        "read_backward": 2, "memory_gradients": 1,
    },
}  # fmt: skip
# Dropout's two seeds, the mean of the loss, and what that sends back to the operators.
LEFT = {"randint", "clamp", "div", "neg", "mul", "ones_like"}


class Operations(TorchDispatchMode):
    """Counts operations of torch that compute something."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, operation, types, arguments=(), named=None):
        returned = operation(*arguments, **(named or {}))
        made, known = (
            [one.untyped_storage().data_ptr() for one in tree_leaves(some) if isinstance(one, torch.Tensor)]
            for some in (returned, arguments)
        )
        name = operation.__name__.split(".")[0]
        views = set(made) <= set(known) and not operation._schema.is_mutable
        if operation.namespace == "aten" and not views and "empty" not in name:
            self.counts[name] += 1
        return returned


@pytest.mark.parametrize("name", STEPS)
def test_a_step_of_a_classifier_is_few_kernels(monkeypatch, kernels, name):
    counted = {one: Counted(getattr(module, one)) for one, module in NAMES.items()}
    for one, module in NAMES.items():
        monkeypatch.setattr(module, one, counted[one])
    model = models.build(name, Problem.of(Vectors(5, length=8), OneOf(3)), layers=2, dim=32, num_heads=2)
    step = step_of(model.to(DEVICE))
    data, targets = torch.randn(3, 8, 5, device=DEVICE), torch.tensor([0, 2, 1], device=DEVICE)
    with Operations() as operations, torch.autocast(DEVICE, torch.bfloat16):
        _, objective = step._means(Batch.of(data, targets=targets))
        objective.backward()
    assert {one: kernel.count for one, kernel in counted.items() if kernel.count} == {**STEPS[name], **ENDS}
    assert set(operations.counts) <= LEFT
    assert operations.counts["randint"] == 2 and operations.counts.total() <= 9
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
