"""The kernels that run all steps of a Neural Turing Machine: against the plain steps, at extremes, as an operator.

They run on a GPU where there is one, in Triton's interpreter elsewhere.
"""

import pytest
import torch

from regard.nn.ntm import forward, fused, op, plain
from regard.nn.ntm.layout import MachineLayout
from tests.nn.ntm_machines import build, by_form, inputs
from tests.nn.test_ntm_steps import graded
from tests.nn.test_ntm_steps import request as usual_request

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
# float64 shows a wrong formula where float32 would hide it in its rounding; on a GPU the kernels are for float32.
DTYPE, TOLERANCE = (torch.float32, 2e-4) if GPU else (torch.float64, 1e-11)


@pytest.fixture(autouse=True)
def kernels(monkeypatch):
    """Every machine runs on the kernels, also on the CPU."""
    monkeypatch.setattr(fused, "on_cpu", True)


def request(form, b=2, t=3, masked=False, dtype=DTYPE):
    torch.manual_seed(11)
    layout, drive, trained, before, keep = usual_request(form, b, t, masked, dtype)

    def there(tensor):
        return tensor.detach().to(DEVICE).requires_grad_()

    if masked:
        keep = torch.tensor([[True, False], [False, True], [True, True]])[:t, :b].to(DEVICE)
    return (layout, there(drive), type(trained)(*map(there, trained)), type(before)(*map(there, before)), keep)


def frozen(arguments):
    layout, drive, trained, before, keep = arguments
    return (
        layout,
        drive.detach(),
        type(trained)(*[x.detach() for x in trained]),
        type(before)(*[x.detach() for x in before]),
        keep,
    )


def compare(arguments):
    """Results and every gradient, against the plain steps."""
    assert fused.takes(arguments[0], arguments[1])
    pulls = [torch.randn_like(result) for result in plain.sequence(*arguments)]
    expected, found = graded(plain.sequence, arguments, pulls), graded(op.sequence, arguments, pulls)
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=TOLERANCE, atol=TOLERANCE)


@by_form
def test_the_kernels_equal_the_plain_steps_in_results_and_every_gradient(form):
    compare(request(form, masked=True))


@pytest.mark.parametrize("form", ["one of each, lstm", "feed-forward"])
def test_they_do_where_nothing_is_padded(form):
    compare(request(form, b=1, t=2))


def test_in_float32_they_are_as_near_to_the_truth_as_the_plain_steps():
    exact = request("two read, three write", b=1, t=2, dtype=torch.float64)

    def rounded(tensors):
        return type(tensors)(*[x.detach().float().requires_grad_() for x in tensors])

    near = (exact[0], exact[1].detach().float().requires_grad_(), rounded(exact[2]), rounded(exact[3]), None)
    pulls = [torch.randn_like(result) for result in plain.sequence(*exact)]
    truth = graded(plain.sequence, exact, pulls)
    errors = []
    for way in (plain.sequence, op.sequence):
        found = graded(way, near, [pull.float() for pull in pulls])
        errors.append(
            max(float((x - y).detach().norm() / y.norm().detach()) for x, y in zip(found, truth, strict=True))
        )
    assert errors[1] < max(2 * errors[0], 1e-6)


def test_the_record_is_that_of_the_loop():
    """So that the backward pass of either can follow the forward pass of the other."""
    arguments = frozen(request("two read, three write", b=1, t=2))
    *_, expected = forward.run(*arguments, True)
    *_, found = fused.run_forward(*arguments, True)
    for name, x, y in zip(expected._fields, found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=TOLERANCE, atol=TOLERANCE, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("form", ["one of each, lstm", "feed-forward"])
def test_without_gradients_the_results_are_the_same_and_nothing_is_kept(form):
    arguments = frozen(request(form, masked=True))
    *saved, _ = fused.run_forward(*arguments, True)
    *bare, record = fused.run_forward(*arguments, False)
    assert record.gates.shape[0] == record.moved.shape[0] == 1
    for x, y in zip(bare, saved, strict=True):
        # On a GPU the compiler may join multiplications and additions differently where nothing is stored.
        torch.testing.assert_close(x, y, rtol=1e-5 if GPU else 0, atol=1e-6 if GPU else 0)


@pytest.mark.slow
def test_results_that_nobody_used_need_no_gradient_and_repeats_give_the_same_bits():
    arguments = request("one of each, lstm", masked=True)
    layout, drive, trained, before = arguments[:4]
    pull = torch.randn(4, 2, layout.reads + layout.hidden, dtype=DTYPE, device=DEVICE)
    wanted = [drive, *trained, *before]

    def only_seen(call):
        return torch.autograd.grad(call(*arguments)[0], wanted, pull)

    first, again, expected = only_seen(op.sequence), only_seen(op.sequence), only_seen(plain.sequence)
    for x, y, z in zip(first, again, expected, strict=True):
        assert torch.equal(x, y)
        torch.testing.assert_close(x, z, rtol=TOLERANCE, atol=TOLERANCE)


def test_a_controller_wider_than_a_block_and_slots_that_fill_none(monkeypatch):
    sizes = fused._sizes
    monkeypatch.setattr(fused, "_sizes", lambda layout: {**sizes(layout), "BLOCK": 4, "INNER": 4})
    compare(request("two read, three write", b=1, t=2))


@pytest.mark.parametrize("size", [1e2, 1e4])
def test_gradients_stay_finite_where_everything_saturates(size):
    machine = build(dtype=torch.float32).to(DEVICE)
    with torch.no_grad():
        machine.tape.heads.weight.mul_(size)
    outputs, state = machine(inputs(b=1, t=3, dtype=torch.float32).to(DEVICE))
    outputs.square().sum().backward()
    assert outputs.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in machine.parameters())
    torch.testing.assert_close(state.write_weights.sum(-1), torch.ones(1, 1, device=DEVICE))


def test_a_memory_and_keys_of_zeros_give_finite_gradients():
    machine = build(dtype=torch.float32).to(DEVICE)
    with torch.no_grad():
        machine.tape.heads.weight[: machine.tape.layout.sections["keys"].stop] = 0
        machine.tape.heads.bias[: machine.tape.layout.sections["keys"].stop] = 0
    state = machine.initial_state(1)
    empty = torch.zeros_like(state.memory).requires_grad_()
    given = inputs(b=1, t=3, dtype=torch.float32).to(DEVICE)
    outputs, _ = machine(given, type(state)(**{**vars(state), "memory": empty}))
    outputs.square().sum().backward()
    assert outputs.isfinite().all() and empty.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in machine.parameters())


def test_a_step_that_is_not_finite_stays_visible_in_its_own_sequence():
    machine = build(dtype=torch.float32).to(DEVICE)
    x = inputs(b=2, t=3, dtype=torch.float32).to(DEVICE)
    clean = machine(x)[0]
    x[1, 1, 0] = torch.inf
    outputs = machine(x)[0]
    assert torch.equal(outputs[0], clean[0]) and torch.equal(outputs[1, 0], clean[1, 0])
    assert outputs[1, 1:].isnan().all()


def test_padding_that_is_not_finite_reaches_neither_results_nor_gradients():
    machine = build("feed-forward", dtype=torch.float32).to(DEVICE)
    keep = torch.tensor([[True, False, True]], device=DEVICE)
    found = []
    for poison in (0.0, torch.nan):
        x = inputs(b=1, t=3, dtype=torch.float32).to(DEVICE)
        x[0, 1] = poison
        machine.zero_grad()
        outputs = machine(x, keep=keep)[0]
        outputs.square().sum().backward()
        found.append([outputs.detach(), *[parameter.grad for parameter in machine.parameters()]])
    assert all(torch.equal(x, y) for x, y in zip(*found, strict=True))


def test_what_the_kernels_do_not_run_goes_through_the_loop(monkeypatch):
    like = torch.empty(3, 2, 5)
    assert fused.takes(MachineLayout(1, 1, 512, 64, 1, 100, True), like)
    assert not fused.takes(MachineLayout(1, 1, 513, 64, 1, 100, True), like)
    assert not fused.takes(MachineLayout(1, 1, 8, 4, 1, 6, True), torch.empty(3, 0, 5))
    monkeypatch.setattr(fused, "on_cpu", False)
    assert not fused.takes(MachineLayout(1, 1, 8, 4, 1, 6, True), like)


@pytest.mark.parametrize(("b", "t"), [(0, 3), (2, 0)])
def test_empty_batches_and_sequences(b, t):
    machine = build(dtype=torch.float32).to(DEVICE)
    outputs, _ = machine(inputs(b=b, t=t, dtype=torch.float32).to(DEVICE))
    assert outputs.shape[:2] == (b, t)
    outputs.sum().backward()
    assert all(p.grad is None or bool((p.grad == 0).all()) for p in machine.parameters())


@pytest.mark.slow
def test_the_operator_passes_torchs_own_check():
    layout, drive, trained, before, keep = request("feed-forward", t=1, masked=True)
    arguments = (drive, *trained, *before, keep, layout.read_heads, layout.lstm)
    tests = ("test_schema", "test_faketensor")  # the others run the loop's kernels in tests/nn/test_ntm_steps.py
    torch.library.opcheck(torch.ops.regard.ntm.default, (*arguments, True), test_utils=tests)


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
def test_on_a_gpu_a_recorded_step_replays_and_a_new_length_compiles_nothing():
    from regard.nn.ntm.fused_forward import forward_kernel

    machine = build(dtype=torch.float32).cuda()
    x = inputs(b=2, t=3, dtype=torch.float32).cuda()

    def run(x):
        machine.zero_grad(set_to_none=True)
        outputs = machine(x)[0]
        outputs.square().sum().backward()
        return outputs

    aside = torch.cuda.Stream()
    with torch.cuda.stream(aside):
        expected = run(x).detach().clone()
    torch.cuda.synchronize()
    compiled = sum(len(cache[0]) for cache in forward_kernel.device_caches.values())
    for steps in range(1, 30):
        run(torch.randn(2, steps, x.shape[2], device="cuda"))
    assert sum(len(cache[0]) for cache in forward_kernel.device_caches.values()) == compiled
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run(x)
    graph.replay()
    assert torch.equal(found.detach(), expected)
