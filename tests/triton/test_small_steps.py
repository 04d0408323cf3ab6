"""What a training step of a small model is made of: the kernels that it launches, and what remains of torch."""

from collections import Counter

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

pytest.importorskip("triton")

from regard_fast.fused_memory import gradient_kernels, read_kernels, static_kernels, write_kernels
from regard_fast.fused_rows import head_kernels, pooled_kernels, short_kernels, vector_kernels
from regard_fast.fused_rows import kernels as row_kernels
from regard_workbench import models
from regard_workbench.tasks.answers import NextToken, OneOf
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.streams import Tokens, Vectors
from regard_workbench.training.engines.cuda_graph import fused_update
from tests.triton.test_fused_head import step_of
from tests.triton.test_fused_rows import DEVICE, Counted, kernels

assert kernels  # a fixture
NAMES = {
    "embed_vectors": vector_kernels,
    "vector_gradients": vector_kernels,
    "rows_forward": row_kernels,
    "rows_backward": row_kernels,
    "weight_gradients": row_kernels,
    "static_forward": static_kernels,
    "static_backward": static_kernels,
    "write_forward": write_kernels,
    "write_backward": write_kernels,
    "read_forward": read_kernels,
    "read_backward": read_kernels,
    "memory_gradients": gradient_kernels,
    "short_forward": short_kernels,
    "short_backward": short_kernels,
    "pooled_loss": pooled_kernels,
    "head_loss": head_kernels,
    "add_parts": head_kernels,
    "square_sums": fused_update,
    "adamw": fused_update,
}
ENDS = {"embed_vectors": 1, "vector_gradients": 1, "pooled_loss": 1, "add_parts": 1, "weight_gradients": 1}
STEPS = {
    "static-transformer": {
        "rows_forward": 3,
        "rows_backward": 3,
        "static_forward": 2,
        "static_backward": 2,
        "memory_gradients": 1,
    },
    "dynamic-transformer": {
        "rows_forward": 3,
        "rows_backward": 3,
        "write_forward": 2,
        "write_backward": 2,
        "read_forward": 2,
        "read_backward": 2,
        "memory_gradients": 1,
    },
}
# Dropout's two seeds, and the gradient of the rows, which is divided by the count: one kernel of a compiled step.
LEFT = {"randint": 2, "clamp": 1, "div": 1, "mul": 1}
# A decoder's table of tokens is also the weight of its head, and autograd adds the two gradients.
DECODER = {
    "rows_forward": 3,
    "short_forward": 2,
    "head_loss": 1,
    "add_parts": 1,
    "rows_backward": 3,
    "short_backward": 2,
    "weight_gradients": 1,
    "square_sums": 1,
    "adamw": 1,
}


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


@pytest.fixture
def launches(monkeypatch, kernels):
    """How often each kernel was launched since it was last asked."""
    counted = {one: Counted(getattr(module, one)) for one, module in NAMES.items()}
    for one, module in NAMES.items():
        monkeypatch.setattr(module, one, counted[one])

    def asked():
        found = {one: kernel.count for one, kernel in counted.items() if kernel.count}
        for kernel in counted.values():
            kernel.count = 0
        return found

    return asked


def updated(model):
    """A step of this model as a graph captures it, after an eager one: its kernels, its operations of torch."""
    step = step_of(model.to(DEVICE))
    rate = torch.tensor(0.1, device=DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, fused=True, capturable=DEVICE == "cuda")
    step.update = fused_update.FusedUpdate(optimizer, 1.0)
    seed, found = torch.tensor([5], device=DEVICE), torch.empty(3, dtype=torch.float64, device=DEVICE)

    def take(batch):
        optimizer.zero_grad(set_to_none=True)
        step.update.ready()
        with Operations() as operations, torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
            loss = step.backward(batch, seed)
        step.update.write(step.update.eager_table)
        step.update(loss, step.update.eager_table, rate, found)
        assert found.isfinite().all() and found[2] == 0
        return operations.counts

    return take


@pytest.mark.parametrize("name", STEPS)
def test_a_step_of_a_classifier_is_few_kernels(launches, name):
    model = models.build(name, Problem.of(Vectors(5, length=8), OneOf(3)), layers=2, dim=32, num_heads=2)
    take = updated(model)
    data, targets = torch.randn(3, 8, 5, device=DEVICE), torch.tensor([0, 2, 1], device=DEVICE)
    for first in (True, False):
        operations = take(Batch.of(data, targets=targets))
        assert launches() == {**STEPS[name], **ENDS, "square_sums": 1, "adamw": 1}
        assert operations == {**LEFT, **({"ones_like": 1} if first else {})}
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def tokens(length=8):
    inputs, targets = (torch.randint(3, 67, (3, length), device=DEVICE) for _ in range(2))
    return Batch.of(inputs, targets=targets)


def decoder(**options):
    problem = Problem.of(Tokens(67, length=8), NextToken(67))
    return models.build("decoder", problem, layers=2, dim=32, num_heads=2, dropout=0.3, **options)


@pytest.mark.parametrize("tied", [True, False])
def test_a_step_of_a_decoder_is_nothing_but_kernels_of_its_own(launches, tied):
    take = updated(decoder(tied=tied))
    for first in (True, False):
        operations = take(tokens())
        assert launches() == DECODER
        assert operations == {**({"add": 1} if tied else {}), **({"ones_like": 1} if first else {})}


def test_a_compiled_step_of_a_decoder_computes_nothing_around_its_operators(kernels):
    graphs = []

    def noted(graph, inputs):
        graphs.append(graph)
        return make_boxed_func(graph)

    step = step_of(decoder().to(DEVICE))
    means = torch.compile(step._means, fullgraph=True, backend=aot_autograd(fw_compiler=noted))
    seed = torch.tensor([5], device=DEVICE)
    with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
        means(tokens(), seed)[1].backward()
    views = ("split_with_sizes", "view", "slice", "getitem", "detach")
    computed = [
        [
            node.target.__name__
            for node in one.graph.nodes
            if node.op == "call_function" and not node.target.__name__.startswith(views)
        ]
        for one in graphs
    ]
    assert computed == [["fused_stack_loss.default"], ["fused_stack_loss_backward.default", "add.Tensor"]]
