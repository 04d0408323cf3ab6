"""The fast steps of a machine against the plain ones and finite differences, with extreme inputs, as an operator."""

import pytest
import torch
from torch.autograd import gradgradcheck

from bench.cases.ntm import differences, small_case
from regard.nn.ntm import op, plain
from regard.nn.ntm.layout import MachineLayout
from tests.nn.ntm_machines import FORMS, INPUTS, SMALL, B, T, build, by_form, inputs

# The fast steps and the plain ones.


def request(form, b=B, t=T, masked=False, dtype=torch.float64):
    """MachineLayout and random tensors as the operator takes them."""
    options = {"read_heads": 1, "write_heads": 1, "shift_range": 1, "controller": "lstm", **SMALL, **FORMS[form]}
    layout = MachineLayout(
        options["read_heads"],
        options["write_heads"],
        options["slots"],
        options["width"],
        options["shift_range"],
        options["hidden"],
        options["controller"] == "lstm",
    )

    def new(*shape):
        return torch.randn(*shape, dtype=dtype).requires_grad_()

    trained = plain.Weights(
        new(layout.drive, layout.fed_back), new(layout.parameters, layout.hidden), new(layout.parameters)
    )
    weights = torch.randn(b, layout.heads, layout.slots, dtype=dtype).softmax(-1).requires_grad_()
    cell = new(b, layout.hidden if layout.lstm else 0)
    before = plain.Carried(new(b, layout.reads + layout.hidden), cell, weights, new(b, layout.slots, layout.width))
    keep = torch.rand(t, b) > 0.4 if masked else None
    return layout, new(t, b, layout.drive), trained, before, keep


def graded(call, arguments, pulls):
    layout, drive, trained, before, keep = arguments
    results = call(layout, drive, trained, before, keep)
    wanted = [drive, *trained, *before]
    return [*results, *torch.autograd.grad(results, wanted, pulls, materialize_grads=True, allow_unused=True)]


@by_form
@pytest.mark.parametrize("masked", [False, True], ids=["all real", "padded"])
def test_the_fast_steps_equal_the_plain_ones_in_results_and_every_gradient(form, masked):
    for dtype, tolerance in ((torch.float64, 1e-11), (torch.float32, 2e-4)):
        arguments = request(form, masked=masked, dtype=dtype)
        pulls = [torch.randn_like(result) for result in plain.sequence(*arguments)]
        expected, found = graded(plain.sequence, arguments, pulls), graded(op.sequence, arguments, pulls)
        for x, y in zip(found, expected, strict=True):
            torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance)


@by_form
def test_without_gradients_the_results_are_the_same_bits(form):
    arguments = request(form, masked=True)
    with torch.no_grad():
        found = op.sequence(*arguments)
    for x, y in zip(found, op.sequence(*arguments), strict=True):
        assert torch.equal(x, y)


def test_second_derivatives_use_the_plain_steps():
    machine = build(slots=3, width=2, hidden=2, read_heads=1)
    keep = torch.tensor([[True, True], [True, False]])

    def call(x):
        return machine(x, keep=keep)[0]

    assert gradgradcheck(call, (inputs(b=2, t=2).requires_grad_(),))


def test_gradients_stay_finite_where_everything_saturates():
    """Strength, gamma and gates are so large that softmax and sigmoid are exactly 0 or 1."""
    for size in (1e2, 1e4):
        machine = build(dtype=torch.float32)
        with torch.no_grad():
            machine.tape.heads.weight.mul_(size)
        outputs, state = machine(inputs(dtype=torch.float32))
        outputs.square().sum().backward()
        assert outputs.isfinite().all()
        assert all(parameter.grad.isfinite().all() for parameter in machine.parameters())
        torch.testing.assert_close(state.write_weights.sum(-1), torch.ones(B, 1))


def test_a_memory_of_zeros_gives_finite_gradients():
    machine = build(dtype=torch.float32)
    state = machine.initial_state(B)
    empty = torch.zeros_like(state.memory).requires_grad_()
    outputs, _ = machine(inputs(dtype=torch.float32), type(state)(**{**vars(state), "memory": empty}))
    outputs.square().sum().backward()
    assert outputs.isfinite().all() and empty.grad.isfinite().all()


@pytest.mark.slow
def test_the_benchmarks_two_machines_agree_before_they_are_timed():
    assert max(differences(*small_case(dtype=torch.float64)).values()) < 1e-11
    assert max(differences(*small_case()).values()) < 1e-5


def test_ten_thousand_steps_keep_the_sum_of_the_weights():
    machine = build(dtype=torch.float32, slots=31)
    x = torch.randn(1, 10_000, INPUTS)
    with torch.no_grad():
        _, state, trace = machine(x, return_trace=True)
    assert (trace.read.sum(-1) - 1).abs().max() < 1e-5
    assert (trace.write.sum(-1) - 1).abs().max() < 1e-5
    assert state.memory.isfinite().all()


@pytest.mark.slow
def test_it_compiles_to_one_graph_with_the_same_results():
    machine, x = build(dtype=torch.float32), inputs(dtype=torch.float32)
    keep = torch.rand(B, T) > 0.3
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, keep: machine(x, keep=keep)[0], fullgraph=True, backend="aot_eager")
    for call in (compiled, lambda x, keep: machine(x, keep=keep)[0]):
        machine.zero_grad()
        outputs = call(x, keep)
        outputs.square().sum().backward()
        found = [outputs.detach(), *[parameter.grad for parameter in machine.parameters()]]
        if call is compiled:
            first = found
    for x, y in zip(first, found, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5)
    torch._dynamo.reset()


@pytest.mark.slow
def test_the_operator_passes_torchs_opcheck():
    layout, drive, trained, before, keep = request("two read, three write", b=2, t=2, masked=True)
    arguments = (drive, *trained, *before, keep, layout.read_heads, layout.lstm)
    torch.library.opcheck(torch.ops.regard.ntm.default, (*arguments, True))
    frozen = [x.detach() if isinstance(x, torch.Tensor) else x for x in arguments]
    seen, cell, weights, memory, *rest = torch.ops.regard.ntm.default(*frozen, True)
    pulls = [torch.randn_like(x) for x in (seen, cell, weights, memory)]
    record = [seen, cell, weights, *rest]
    arguments = (*pulls, *[x.detach() for x in trained], record, keep, layout.read_heads, layout.lstm)
    torch.library.opcheck(torch.ops.regard.ntm_backward.default, arguments)


def test_without_gradients_no_record_is_kept():
    layout, drive, trained, before, keep = request("feed-forward", masked=True)
    arguments = [x.detach() if isinstance(x, torch.Tensor) else x for x in (drive, *trained, *before, keep)]
    torch.library.opcheck(torch.ops.regard.ntm.default, (*arguments, layout.read_heads, layout.lstm, False))
    found = torch.ops.regard.ntm.default(*arguments, layout.read_heads, layout.lstm, False)
    assert sum(x.numel() for x in found[4:]) == 0
