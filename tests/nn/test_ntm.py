"""The Neural Turing Machine as a module: against loops in numpy; states, padding, dtypes, options; learning to copy."""

import copy
import pickle

import numpy as np
import pytest
import torch

from regard import masks
from regard.errors import BadType, BadValue
from regard.nn import ntm
from tests.nn.ntm_machines import FORMS, INPUTS, OUTPUTS, SMALL, B, T, build, by_form, inputs

# An oracle in numpy, one sequence and one head at a time, from equations 1 to 9 of the paper and the order of a step
# that the module promises: all heads address, all erase, all add, then all read.


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    return np.exp(x) / np.exp(x).sum()


def machine_by_loops(machine, x):
    tape = machine.tape
    size = tape.layout
    state = {name: weight.detach().numpy() for name, weight in machine.named_parameters()}
    first = tape.initial_state(1, dtype=torch.float64)
    memory = first.memory[0].detach().numpy().copy()
    places = [*first.read_weights[0].detach().numpy(), *first.write_weights[0].detach().numpy()]
    reads = [*first.reads[0].detach().numpy()]
    hidden = cell = np.zeros(size.hidden)
    outputs = []
    for given in x:
        fed = np.concatenate([*reads, hidden] if size.lstm else [np.zeros(0), *reads])
        gates = state["tape.controller.input.weight"] @ given + state["tape.controller.input.bias"]
        if len(fed):
            gates = gates + state["tape.controller.recurrent"] @ fed
        if size.lstm:
            out, enter, forget, candidate = gates.reshape(4, -1)
            cell = sigmoid(forget) * cell + sigmoid(enter) * np.tanh(candidate)
            hidden = sigmoid(out) * np.tanh(cell)
        else:
            hidden = np.tanh(gates)
        numbers = list(state["tape.heads.weight"] @ hidden + state["tape.heads.bias"])

        def take(count, numbers=numbers):
            found, numbers[:count] = numbers[:count], []
            return np.array(found)

        heads, writes = size.heads, size.write_heads
        keys = [take(size.width) for _ in range(heads)]
        add = [take(size.width) for _ in range(writes)]
        erase = [sigmoid(take(size.width)) for _ in range(writes)]
        gate, strength, gamma = (sigmoid(take(heads)), np.log1p(np.exp(take(heads))), 1 + np.log1p(np.exp(take(heads))))
        kernels = [softmax(take(2 * size.shift_range + 1)) for _ in range(heads)]
        for head in range(heads):
            lengths = np.linalg.norm(memory, axis=1) * np.linalg.norm(keys[head])
            content = softmax(strength[head] * (memory @ keys[head]) / lengths)
            mixed = gate[head] * content + (1 - gate[head]) * places[head]
            moved = np.zeros(size.slots)
            for slot in range(size.slots):
                for j, share in enumerate(kernels[head]):
                    moved[(slot + j - size.shift_range) % size.slots] += share * mixed[slot]
            places[head] = moved ** gamma[head] / (moved ** gamma[head]).sum()
        writing = places[size.read_heads :]
        for weights, vector in zip(writing, erase, strict=True):
            memory = memory * (1 - np.outer(weights, vector))
        for weights, vector in zip(writing, add, strict=True):
            memory = memory + np.outer(weights, vector)
        reads = [weights @ memory for weights in places[: size.read_heads]]
        seen = np.concatenate([*reads, hidden])
        outputs.append(state["output.weight"] @ seen + state["output.bias"])
    return np.array(outputs), memory, np.array(places)


@by_form
def test_the_machine_equals_loops_over_the_definition(form):
    machine, x = build(form), inputs()
    outputs, state = machine(x)
    for b in range(B):
        expected, memory, places = machine_by_loops(machine, x[b].numpy())
        np.testing.assert_allclose(outputs[b].detach(), expected, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(state.memory[b].detach(), memory, rtol=1e-10, atol=1e-10)
        found = torch.cat([state.read_weights, state.write_weights], 1)[b]
        np.testing.assert_allclose(found.detach(), places, rtol=1e-10, atol=1e-10)


# State.


@by_form
@pytest.mark.parametrize("cuts", [[1, 2, 3, 4], [2], [0, 5], [3, 3]])
def test_any_split_of_a_sequence_into_calls_equals_one_call(form, cuts):
    machine, x = build(form), inputs()
    whole, last, trace = machine(x, return_trace=True)
    state, parts, traces = machine.initial_state(B), [], []
    for start, stop in zip([0, *cuts], [*cuts, T], strict=True):
        part, state, part_of_trace = machine(x[:, start:stop], state, return_trace=True)
        parts.append(part)
        traces.append(part_of_trace.write)
    torch.testing.assert_close(torch.cat(parts, 1), whole)
    torch.testing.assert_close(torch.cat(traces, 1), trace.write)
    assert state.seen == last.seen == T
    for x, y in zip(flat(state), flat(last), strict=True):
        torch.testing.assert_close(x, y)


def flat(state):
    return [state.memory, state.read_weights, state.write_weights, state.reads, *state.controller]


def test_a_state_can_be_continued_twice():
    machine, x = build(), inputs()
    _, state = machine(x)
    before = [tensor.clone() for tensor in flat(state)]
    first, _ = machine(x, state)
    second, _ = machine(x, state)
    assert torch.equal(first, second)
    assert all(torch.equal(x, y) for x, y in zip(flat(state), before, strict=True))


def test_gradients_flow_through_a_state_into_earlier_calls():
    machine, x = build(), inputs().requires_grad_()
    outputs, _ = machine(x)
    (expected,) = torch.autograd.grad(outputs[:, 3:].square().sum(), x)
    _, state = machine(x[:, :3])
    rest, _ = machine(x[:, 3:], state)
    (found,) = torch.autograd.grad(rest.square().sum(), x)
    torch.testing.assert_close(found, expected)


def test_a_learned_initial_state_gets_gradients_and_a_constant_one_has_no_parameters():
    machine = build("learned")
    machine(inputs())[0].square().sum().backward()
    for name in ("first_memory", "first_reads", "first_places"):
        assert getattr(machine.tape, name).grad.abs().max() > 0
    names = [name for name, _ in build().named_parameters()]
    assert not [name for name in names if "first" in name]
    assert (build().initial_state(2).memory == 1e-6).all()


def test_heads_start_evenly_spaced_with_the_first_one_on_slot_zero():
    state = build("two read, three write", slots=9).initial_state(1)
    assert state.read_weights[0].argmax(-1).tolist() == [0, 3]
    assert state.write_weights[0].argmax(-1).tolist() == [0, 3, 6]


# Padding.

KEEP = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [0, 1, 0, 1, 1]], dtype=torch.bool)


@by_form
@pytest.mark.parametrize("poison", [4.0, torch.nan, torch.inf])
def test_padded_steps_neither_write_nor_move_and_give_zeros(form, poison):
    machine, x = build(form), inputs()
    dirty = x.masked_fill(~KEEP[..., None], poison).requires_grad_()
    outputs, state, trace = machine(dirty, keep=KEEP, return_trace=True)
    outputs.square().sum().backward()
    assert (outputs[~KEEP] == 0).all() and (trace.read[~KEEP] == 0).all() and (trace.write[~KEEP] == 0).all()
    assert (dirty.grad[~KEEP] == 0).all()
    found = {name: weight.grad for name, weight in machine.named_parameters()}
    alone = build(form)
    for b in range(B):
        single, last = alone(x[b : b + 1, KEEP[b]])
        single.square().sum().backward()
        torch.testing.assert_close(outputs[b, KEEP[b]], single[0])
        torch.testing.assert_close(state.memory[b], last.memory[0])
    for name, weight in alone.named_parameters():
        expected = torch.zeros_like(weight) if weight.grad is None else weight.grad
        torch.testing.assert_close(found[name], expected, msg=lambda text, name=name: f"{name}: {text}")


def test_a_mask_with_a_keep_equals_its_tensor():
    machine, x = build(), inputs()
    for mask, keep in (
        (masks.padding(KEEP), KEEP),
        (masks.lengths([5, 3, 1]), torch.arange(T) < torch.tensor([[5], [3], [1]])),
    ):
        assert torch.equal(machine(x, keep=mask)[0], machine(x, keep=keep)[0])
    with pytest.raises(BadValue, match="depends on the query"):
        machine(x, keep=masks.causal())


def test_a_non_finite_step_shows_in_its_own_sequence_only():
    for poison in (torch.nan, torch.inf):
        for form in ("one of each, lstm", "feed-forward"):
            x = inputs()
            x[1, 2, 0] = poison
            outputs, _ = build(form)(x)
            assert outputs[1, 2:].isnan().all()
            assert outputs[[0, 2]].isfinite().all() and outputs[1, :2].isfinite().all()


# Sizes, dtypes, copies, options.


@pytest.mark.parametrize(("b", "t"), [(0, T), (B, 0), (0, 0)])
@by_form
def test_empty_batches_and_sequences(form, b, t):
    machine, x = build(form), inputs(b, t).requires_grad_()
    outputs, state, trace = machine(x, return_trace=True)
    assert outputs.shape == (b, t, OUTPUTS)
    assert trace.write.shape == (b, t, machine.tape.layout.write_heads, 7)
    assert torch.equal(state.memory, machine.initial_state(b).memory)
    (outputs.sum() + state.memory.sum()).backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_finite_and_near(dtype):
    machine, x = build(dtype=torch.float32), inputs(dtype=torch.float32)
    expected = machine(x)[0]
    with torch.autocast("cpu", dtype):
        outputs, state = machine(x)
    assert state.memory.dtype == torch.float32
    torch.testing.assert_close(outputs.float(), expected, rtol=0.1, atol=0.1)
    outputs.float().square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in machine.parameters())
    low = copy.deepcopy(machine).to(dtype)
    outputs, state = low(x.to(dtype))
    assert outputs.dtype == state.memory.dtype == dtype and outputs.isfinite().all()


@by_form
def test_copies_pickles_and_loads(form):
    machine, x = build(form), inputs()
    expected = machine(x)[0]
    other = ntm.Machine(INPUTS, OUTPUTS, **{**SMALL, **FORMS[form]}).double()
    other.load_state_dict(machine.state_dict())
    for again in (copy.deepcopy(machine), pickle.loads(pickle.dumps(machine)), other):
        assert torch.equal(again(x)[0], expected)


def test_beams_reorder_a_state():
    machine, x = build(), inputs()
    _, state = machine(x)
    order = torch.tensor([2, 0, 0, 1])
    moved, _ = machine(x[order], state.reorder(order))
    torch.testing.assert_close(moved, machine(x, state)[0][order])


BAD = {
    "slots": 0,
    "width": 0,
    "hidden": 0,
    "shift_range": 8,
    "initial": "random",
    "controller": "gru",
    "read_heads": -1,
}


@pytest.mark.parametrize("option", BAD)
def test_an_invalid_option_is_refused_by_name(option):
    with pytest.raises(BadValue, match=f"^{option}: "):
        build(**{option: BAD[option]})


def test_errors_name_the_argument():
    machine, x = build(), inputs()
    with pytest.raises(BadValue, match=r"^read_heads: "):
        build(read_heads=0, write_heads=0)
    with pytest.raises(BadValue, match=r"^x: "):
        machine(x[0])
    with pytest.raises(BadValue, match=r"^x: "):
        machine(x[..., :2])
    with pytest.raises(BadType, match=r"^state: "):
        machine(x, {})
    with pytest.raises(BadValue, match=r"^state: "):
        machine(x, machine.initial_state(B + 1))
    with pytest.raises(BadType, match=r"^keep: "):
        machine(x, keep=KEEP.float())
    with pytest.raises(BadValue, match=r"^keep: "):
        machine(x, keep=KEEP[:, :2])


@pytest.mark.slow
def test_it_learns_to_copy():
    """Two symbols in, two symbols out, after a mark: the loss of guessing is ln 2."""
    torch.manual_seed(0)
    machine = ntm.Machine(5, 4, slots=8, width=6, hidden=24, controller="feed-forward")
    optimizer = torch.optim.Adam(machine.parameters(), lr=2e-2)
    for _ in range(250):
        symbols = torch.randint(0, 2, (16, 2, 4)).float()
        x = torch.zeros(16, 5, 5)
        x[:, :2, :4], x[:, 2, 4] = symbols, 1
        loss = torch.nn.functional.binary_cross_entropy_with_logits(machine(x)[0][:, 3:], symbols)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(machine.parameters(), 10.0)
        optimizer.step()
    assert loss < 0.05
