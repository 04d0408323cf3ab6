"""No kernel of a small model leaves its arguments (`accesses.py`), whatever the rows and the layout of a gradient."""

import pytest
import torch

pytest.importorskip("triton")

from torch import nn

from regard_fast.fused_rows import layers, layout, tokens
from regard_fast.fused_rows.weight_copies import copies, keep_copy
from regard_workbench.models.parts.stack import Stack
from tests.triton.test_fused_rows import DEVICE, kernels

assert kernels  # a fixture
pytestmark = pytest.mark.skipif(DEVICE == "cuda", reason="the interpreter knows addresses")
D, H = 32, 2
ATTENTIONS = [
    "dynamic-memory(slots=5,segment=4,bidirectional=true)",
    "dynamic-memory(slots=5,segment=3,update=memory)",
    "static-memory(slots=5)",
    "causal",
]


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("rows", [7, 8, 9])
def test_stacks_stay_inside_of_their_tensors(kernels, attention, rows):
    torch.manual_seed(2)
    stack = Stack(D, 2, attention, num_heads=H, hidden=64, causal=attention == "causal")
    for batch in (4, 3):  # the last batch of an epoch is smaller
        x = torch.randn(batch, rows, D, requires_grad=True)
        assert layers.refusal(stack.layers, x, None) == ""
        stack(x).sum().backward()  # a gradient of which all strides are zero
        stack(x.mT.contiguous().mT)[:, -1:, ::3].square().sum().backward()
        assert x.grad.isfinite().all()


def test_tables_of_jobs_live_as_long_as_graphs_that_know_their_address(monkeypatch):
    device, kinds = torch.device("cpu"), [layout.Stages(True, True, 3, 32, 32 * n) for n in range(1, 80)]
    first = [layout.jobs(((one,),), 32, 64, device)[0] for one in kinds]
    again = [layout.jobs(((one,),), 32, 64, device)[0] for one in kinds]
    assert all(one is other for one, other in zip(first, again, strict=True))
    monkeypatch.setattr(layout, "may_cache", lambda: False)  # as while a graph is captured
    one = ((layout.Stages(True, True, 3, 32, 32 * 81),),)
    assert layout.jobs(one, 32, 64, device)[0] is not layout.jobs(one, 32, 64, device)[0]


def test_a_weight_at_the_old_address_of_another_does_not_get_its_copy():
    owner = nn.Parameter(torch.zeros(4, 4))
    held = keep_copy(owner)
    assert copies(owner) is held.copy
    old = owner.data
    owner.data = torch.ones(4, 4)
    stranger = old.view(4, 4)
    assert copies(stranger) is stranger


def test_positions_of_tokens_live_as_long_too(monkeypatch):
    made = [tokens._kept_waves(length, 32, torch.device("cpu"), torch.float32) for length in range(1, 40)]
    assert [len(one) for one in made[4:9]] == [8, 8, 8, 8, 16]
    assert tokens._kept_waves(5, 32, torch.device("cpu"), torch.float32) is made[4]
    assert torch.equal(made[30][:7], made[6][:7])


def test_no_operator_has_two_arguments_of_one_name():
    """Inductor of torch 2.11 refuses them, the schema does not."""
    from regard_fast.fused_memory import op, stack_op  # noqa: F401
    from regard_fast.fused_rows import head_op, lstm_op, stack_loss_op  # noqa: F401

    schemas = [one for one in torch._C._jit_get_all_schemas() if one.name.startswith("regard::")]
    assert len(schemas) > 10
    for one in schemas:
        names = [argument.name for argument in one.arguments]
        assert len(set(names)) == len(names), one
