"""Causal mechanisms never see later positions, and steps with a state equal one call."""

import pytest
import torch

from regard import masks
from tests.nn.contracts.layers import CAUSAL, HOLES, PRESETS, Case, K, answer, assert_same, gradients
from tests.nn.contracts.stepping import OVER_A_SOURCE, steps

by_case = pytest.mark.parametrize("case", CAUSAL, ids=str)
by_preset = pytest.mark.parametrize("case", PRESETS, ids=str)
by_state = pytest.mark.parametrize("case", CAUSAL, ids=str)
SPLITS = [(1,) * K, (2, 5), (6, 1), (1, 0, 4, 2)]
RIGHT = torch.arange(K) < torch.tensor([[7], [5], [2]])
LEFT = torch.arange(K) >= torch.tensor([[0], [2], [5]])


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@by_case
def test_no_row_depends_on_later_positions(case):
    layer, (rows,) = case.build(), case.inputs()
    clean = layer(rows)
    for now in (0, 2, 5):
        changed = rows.clone()
        changed[:, now + 1 :] = 5 * torch.randn_like(changed[:, now + 1 :])
        out = layer(changed)
        close(out[:, : now + 1], clean[:, : now + 1])
        assert not torch.allclose(out[:, now + 1], clean[:, now + 1])


@by_preset
def test_no_gradient_flows_to_later_positions(case):
    layer, (rows,) = case.build(), case.inputs()
    for now in (0, 3):
        leaf = rows.clone().requires_grad_()
        (grad,) = torch.autograd.grad(layer(leaf)[:, now].square().sum(), leaf)
        assert (grad[:, now + 1 :] == 0).all()
        assert grad[:, now].abs().sum() > 0


# NaN at later positions is left out: later rows see it, and for a position that some row sees, only `impl="reference"`
# promises that the other rows do not read it (promise 2).
@by_case
def test_large_numbers_at_later_positions_reach_neither_outputs_nor_gradients(case):
    layer, (rows,) = case.build(), case.inputs()
    past = torch.zeros(rows.shape[:2], dtype=torch.bool)
    past[:, :4] = True
    changed = rows.clone()
    changed[:, 4:] *= 100
    assert_same(answer(layer, [changed], rows=past), answer(layer, [rows], rows=past))


@by_state
def test_any_split_into_steps_equals_one_call(case):
    layer, (rows,) = case.build(), case.inputs()
    expected = layer(rows)
    for sizes in SPLITS:
        with torch.no_grad():
            close(steps(layer, rows, sizes)[0], expected)
    close(steps(layer, rows, (3, 1, 2, 1))[0], expected)
    with torch.inference_mode():
        close(steps(layer, rows, (2, 1, 4))[0], expected)


@by_preset
@pytest.mark.parametrize("keep", [RIGHT, LEFT, HOLES], ids=["right", "left", "holes"])
def test_padding_stays_hidden_in_steps(case, keep):
    """A mask covers all positions so far, or those of this call only."""
    layer, (rows,) = case.build(), case.inputs()
    rows = torch.where(keep[..., None], rows, 9.0)
    expected = layer(rows, mask=masks.padding(keep))[keep]
    close(steps(layer, rows, (3, 1, 2, 1), keep=keep)[0][keep], expected)
    with torch.no_grad():
        close(steps(layer, rows, (1,) * K, keep=keep)[0][keep], expected)
        close(steps(layer, rows, (3, 1, 2, 1), keep=keep, only_new=True)[0][keep], expected)


@by_preset
def test_nan_in_padding_does_not_enter_a_state(case):
    layer, (rows,) = case.build(), case.inputs()
    expected, _ = steps(layer, rows, (3, 1, 2, 1), keep=LEFT)
    found, state = steps(layer, rows.masked_fill(~LEFT[..., None], torch.nan), (3, 1, 2, 1), keep=LEFT)
    close(found[LEFT], expected[LEFT])
    after = torch.randn(3, 1, case.dim, dtype=torch.float64)
    assert layer(after, state=state)[0].isfinite().all()


@by_preset
def test_gradients_through_steps_equal_those_of_one_call(case):
    layer, (rows,) = case.build(), case.inputs()
    every = torch.ones(rows.shape[:2], dtype=torch.bool)
    whole, parts = rows.clone().requires_grad_(), rows.clone().requires_grad_()
    expected = gradients(layer, layer(whole), every, [whole])
    found = gradients(layer, steps(layer, parts, (3, 1, 2, 1))[0], every, [parts])
    for name, grad in expected.items():
        torch.testing.assert_close(found[name], grad, rtol=1e-9, atol=1e-9, msg=lambda s, n=name: f"{n}: {s}")


@by_preset
@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no_grad"])
def test_one_state_can_be_continued_twice(case, grad):
    """States are immutable: beams, retries and speculative steps continue from the same state."""
    layer, (rows,) = case.build(), case.inputs()
    other = rows.flip(0).flip(2)
    with torch.set_grad_enabled(grad):
        _, state = steps(layer, rows[:, :3], (2, 1))
        kept = state.map(torch.clone)
        first, after = steps(layer, rows[:, 3:], (1, 3), state)
        _, _ = steps(layer, other[:, 3:], (4,), state)
        _, _ = steps(layer, other[:, 3:], (1, 1, 2), state)
        again, _ = steps(layer, rows[:, 3:], (1, 3), state)
        assert torch.equal(first, again)
        close(steps(layer, rows[:, 3:], (1, 3), kept)[0], first)
        branch = layer(torch.cat([rows[:, :3], other[:, 3:]], 1))[:, 3:]
        close(steps(layer, other[:, 3:], (2, 2), state)[0], branch)
        last = torch.randn(3, 1, case.dim, dtype=torch.float64)
        close(layer(last, state=after)[0], layer(torch.cat([rows, last], 1))[:, K:])


@by_preset
def test_a_reordered_state_continues_like_a_reordered_batch(case):
    layer, (rows,) = case.build(), case.inputs()
    more = torch.randn(4, 3, case.dim, dtype=torch.float64)
    index = torch.tensor([2, 0, 0, 1])  # one beam is duplicated, so the batch grows
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            for keep in (None, LEFT):
                _, state = steps(layer, rows, (4, 3), keep=keep)
                found, _ = steps(layer, more, (1, 2), state.reorder(index))
                longer = None
                if keep is not None:
                    longer = masks.padding(torch.cat([keep[index], keep.new_ones(4, 3)], 1))
                close(found, layer(torch.cat([rows[index], more], 1), mask=longer)[:, K:])


@pytest.mark.parametrize("case", OVER_A_SOURCE, ids=str)
def test_steps_over_a_source_equal_one_call(case):
    layer, (query, source) = case.build(cross=True), case.inputs(cross=True)
    for mask in (None, masks.padding(HOLES)):
        expected = layer(query, source, mask=mask)
        for sizes, again in (((1,) * 5, True), ((2, 3), False), ((5,), True)):
            state, found, start = layer.initial_state(3), [], 0
            for size in sizes:
                given = source if again or start == 0 else None  # the state holds it
                told = None if given is None else mask  # … and its padding
                out, state = layer(query[:, start : start + size], given, mask=told, state=state)
                found.append(out)
                start += size
            close(torch.cat(found, 1), expected)


@pytest.mark.parametrize("case", OVER_A_SOURCE, ids=str)
def test_steps_may_continue_after_the_end_of_a_source(case):
    layer, (query, source) = case.build(cross=True), case.inputs(cross=True)
    query, source = torch.cat([query, query.flip(1)], 1), source[:, :4]
    expected, state, found = layer(query, source), layer.initial_state(3), []
    with torch.no_grad():
        for t in range(query.shape[1]):
            out, state = layer(query[:, t : t + 1], source, state=state)
            found.append(out)
    close(torch.cat(found, 1), expected)


POSITIONS = ("rotary", "alibi", "t5", "shaw", "transformer-xl", "relative")


@pytest.mark.parametrize("options", [{"positions": p} for p in POSITIONS] + [{"window": 3}, {"causal": True}], ids=str)
def test_alignment_with_a_sources_end_is_refused_in_steps_with_advice(options):
    case = Case("multihead", {"dim": 8, **options})
    layer, inputs = case.build(cross=True), case.inputs(cross=True)
    with pytest.raises(ValueError, match="top-left"):
        layer(*inputs, state=layer.initial_state(3))
