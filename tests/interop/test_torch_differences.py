"""Where `regard.interop.torch.MultiheadAttention` differs from torch's layer, with numbers worked out by hand.

Most tests also hold what torch returns, so that a version of torch which mends it is noticed and the docstring can be
shortened. `uniform_layers` has scores of 0: a query takes the mean of the values that it sees, plus (10, 20).
"""

import pytest
import torch
from torch import nn

from regard.interop.torch import MultiheadAttention, replace
from tests.interop.torch_layers import pair, rows, uniform_layers

VALUES = torch.tensor([[[2.0, 0.0], [4.0, 8.0], [0.0, 1.0]]])  # (1,3,2)
BIAS = [10.0, 20.0]


def test_a_query_without_a_visible_key_gets_the_output_bias_and_weights_of_zero():
    theirs, ours = uniform_layers(batch_first=True)
    pairs = torch.tensor([[False, False, True], [True, True, True], [False, False, False]])
    output, weights = ours(VALUES, VALUES, VALUES, attn_mask=pairs)
    torch.testing.assert_close(output[0], torch.tensor([[13.0, 24.0], BIAS, [12.0, 23.0]]))
    torch.testing.assert_close(weights[0], torch.tensor([[0.5, 0.5, 0], [0, 0, 0], [1 / 3] * 3]))
    assert theirs(VALUES, VALUES, VALUES, attn_mask=pairs)[0][0, 1].isnan().all()


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("need_weights", [True, False], ids=["weights", "no-weights"])
@pytest.mark.parametrize("gradient", [True, False], ids=["gradient", "no-gradient"])
@pytest.mark.parametrize("length", [3, 17])
def test_a_sequence_of_padding_gets_the_output_bias_in_every_mode(training, need_weights, gradient, length):
    _, ours = pair(6, 2, batch_first=True)
    given, padding = rows(2, length, 6), torch.zeros(2, length, dtype=torch.bool)
    padding[1] = True
    for masks in (
        {"key_padding_mask": padding},
        {"key_padding_mask": torch.zeros(2, length).masked_fill(padding, -torch.inf)},
        {"attn_mask": padding[:, None].expand(2, length, length).repeat_interleave(2, 0)},
    ):
        with torch.set_grad_enabled(gradient):
            output, weights = ours.train(training)(given, given, given, need_weights=need_weights, **masks)
        torch.testing.assert_close(output[1], ours.out_proj.bias.expand(length, 6))
        alone, _ = ours(given[:1], given[:1], given[:1])
        torch.testing.assert_close(output[0], alone[0])
        if need_weights:
            assert not weights[1].any()
            torch.testing.assert_close(weights[0].sum(-1), torch.ones(length))
        if gradient:
            grads = torch.autograd.grad(output.square().sum(), list(ours.parameters()))
            assert all(grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize("by_head", [True, False], ids=["one-head-empty", "all-heads-empty"])
def test_a_head_that_sees_nothing_adds_nothing_while_the_others_attend(by_head):
    _, ours = pair(4, 2, batch_first=True)
    given = rows(1, 3, 4)
    pairs = torch.zeros(2, 3, 3, dtype=torch.bool)
    pairs[0, 1] = True  # head 0 of query 1 sees nothing
    if not by_head:
        pairs[1, 1] = True
    for training in (True, False):
        with torch.no_grad():
            output, weights = ours.train(training)(given, given, given, attn_mask=pairs, average_attn_weights=False)
            heads = torch.stack(
                [
                    weights[0, h]
                    @ (
                        given[0] @ ours.in_proj_weight[8 + 2 * h : 10 + 2 * h].T
                        + ours.in_proj_bias[8 + 2 * h : 10 + 2 * h]
                    )
                    for h in (0, 1)
                ]
            )
            expected = ours.out_proj(torch.cat([heads[0], heads[1]], -1))
        assert not weights[0, 0, 1].any() and bool(weights[0, 1, 1].any()) == by_head
        torch.testing.assert_close(output[0], expected)


def test_weights_under_dropout_are_those_before_it_and_sum_to_one():
    theirs, ours = uniform_layers(batch_first=True, dropout=0.5)
    given = torch.zeros(1, 4, 2)
    torch.manual_seed(0)
    for _ in range(3):
        _, weights = ours.train()(given, given, given)
        assert torch.equal(weights, torch.full((1, 4, 4), 0.25))
    _, dropped = theirs.train()(given, given, given)
    assert set(dropped.unique().tolist()) == {0.0, 0.5}  # 0.25 / (1 − 0.5), or dropped


@pytest.mark.parametrize("need_weights", [True, False], ids=["weights", "no-weights"])
@pytest.mark.parametrize("masked", [True, False], ids=["masked", "unmasked"])
def test_dropout_drops_the_given_share_and_keeps_the_mean(need_weights, masked):
    _, ours = uniform_layers(batch_first=True, dropout=0.25)
    given = torch.ones(1, 211, 2)
    padding = torch.zeros(1, 211, dtype=torch.bool) if masked else None
    torch.manual_seed(3)
    output, _ = ours.train()(given, given, given, need_weights=need_weights, key_padding_mask=padding)
    attended = output[..., 0] - 10
    # Each is a sum of 211 terms that are 1/211 · 4/3 with probability 3/4.
    assert abs(attended.mean() - 1) < 5 * (1 / 3 / 211) ** 0.5 / 211**0.5
    assert 0.5 * (1 / 3 / 211) ** 0.5 < attended.std() < 2 * (1 / 3 / 211) ** 0.5
    evaluated, _ = ours.eval()(given, given, given, need_weights=need_weights)
    torch.testing.assert_close(evaluated, torch.tensor([11.0, 21.0]).expand(1, 211, 2))


def test_a_padded_row_that_is_nan_changes_neither_outputs_nor_gradients():
    theirs, ours = pair(6, 2, batch_first=True)
    for length in (5, 19):
        padding = torch.zeros(2, length, dtype=torch.bool)
        padding[0, 3:] = True
        found = []
        for filler in (0.0, torch.nan, torch.inf):
            given = rows(2, length, 6).masked_fill(padding[..., None], filler)
            for need_weights in (True, False):
                output, _ = ours(given, given, given, key_padding_mask=padding, need_weights=need_weights)
                loss = output[~padding].square().sum()
                found.append([output[~padding], *torch.autograd.grad(loss, list(ours.parameters()))])
            with torch.no_grad():
                ours.eval()
                found.append([ours(given, given, given, key_padding_mask=padding)[0][~padding], *found[-1][1:]])
                ours.train()
        for other in found[1:]:
            torch.testing.assert_close(other, found[0], rtol=1e-5, atol=1e-5)
        output, _ = theirs(given, given, given, key_padding_mask=padding)
        assert output[~padding].isnan().any()


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("length", [5, 19])
def test_a_visible_row_that_is_nan_shows_in_the_queries_that_see_it(training, length):
    _, ours = pair(6, 2, batch_first=True)
    given, pairs = rows(2, length, 6), torch.zeros(length, length, dtype=torch.bool)
    given[0, 2] = torch.nan
    pairs[:3, 2] = True  # queries 0 to 2 do not see row 2, the others do
    with torch.no_grad():
        output, weights = ours.train(training)(given, given, given, attn_mask=pairs)
    is_nan = output.isnan().any(-1)
    assert is_nan[0].tolist() == [False, False] + [True] * (length - 2) and not is_nan[1].any()
    assert not weights[0, :2].isnan().any() and weights[0, 3].isnan().any()


def test_a_wrong_hint_is_causal_does_not_replace_the_mask():
    theirs, ours = uniform_layers(batch_first=True)
    only_last = torch.tensor([[True, True, False]] * 3)
    for need_weights in (True, False):
        output, _ = ours(VALUES, VALUES, VALUES, attn_mask=only_last, is_causal=True, need_weights=need_weights)
        torch.testing.assert_close(output[0], torch.tensor([[10.0, 21.0]] * 3))
    dropped, _ = theirs(VALUES, VALUES, VALUES, attn_mask=only_last, is_causal=True, need_weights=False)
    torch.testing.assert_close(dropped[0, 0], torch.tensor([12.0, 20.0]))  # query 0 sees itself alone


@pytest.mark.parametrize("need_weights", [True, False], ids=["weights", "no-weights"])
def test_an_added_key_is_visible_to_every_query_of_a_causal_mask(need_weights):
    theirs, ours = uniform_layers(batch_first=True, add_bias_kv=True, add_zero_attn=True)
    with torch.no_grad():
        for layer in (theirs, ours):
            layer.bias_v.copy_(torch.tensor([[[6.0, 3.0]]]))
    later = torch.ones(3, 3, dtype=torch.bool).triu(1)
    output, weights = ours(VALUES, VALUES, VALUES, attn_mask=later, is_causal=True, need_weights=need_weights)
    # Query i takes the mean of values 0 … i, of the learned value and of zeros: i + 3 in all.
    expected = torch.tensor([[8 / 3, 3 / 3], [12 / 4, 11 / 4], [12 / 5, 12 / 5]]) + torch.tensor(BIAS)
    torch.testing.assert_close(output[0], expected)
    if need_weights:
        third, quarter, fifth = 1 / 3, 1 / 4, 1 / 5
        torch.testing.assert_close(
            weights[0],
            torch.tensor([[third, 0, 0, third, third], [quarter, quarter, 0, quarter, quarter], [fifth] * 5]),
        )
    else:
        hidden, _ = theirs(VALUES, VALUES, VALUES, attn_mask=later, is_causal=True, need_weights=False)
        torch.testing.assert_close(hidden[0, 0], torch.tensor([12.0, 20.0]))  # query 0 sees itself alone


def test_hooks_of_the_output_projection_run_also_in_evaluation():
    _, ours = pair(6, 2, batch_first=True)
    seen = []
    ours.out_proj.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    given = rows(2, 3, 6)
    with torch.no_grad():
        ours.eval()(given, given, given)
    assert seen == [(2, 3, 6)]


def test_hooks_of_all_modules_run_also_in_evaluation():
    _, ours = pair(6, 2, batch_first=True)
    seen, given = [], rows(2, 3, 6)
    handle = nn.modules.module.register_module_forward_hook(lambda module, inputs, output: seen.append(module))
    try:
        with torch.no_grad():
            ours.eval()(given, given, given)
    finally:
        handle.remove()
    assert seen == [ours.out_proj, ours]


def test_a_forward_set_on_the_output_projection_counts_also_in_evaluation():
    _, ours = pair(6, 2, batch_first=True)
    ours.out_proj.forward = lambda mixed: torch.full_like(mixed, 7.0)
    given = rows(2, 3, 6)
    for training in (True, False):
        with torch.no_grad():
            output, _ = ours.train(training)(given, given, given)
        assert torch.equal(output, torch.full((2, 3, 6), 7.0))


def test_masks_of_different_dtypes_do_not_warn():
    _, ours = pair(6, 2, batch_first=True)
    given = rows(2, 3, 6)
    padding = torch.tensor([[False, False, True], [False, True, True]])
    mixed, _ = ours(given, given, given, key_padding_mask=padding, attn_mask=rows(3, 3, seed=1))
    numbers = torch.zeros(2, 3).masked_fill(padding, -torch.inf)
    same, _ = ours(given, given, given, key_padding_mask=numbers, attn_mask=rows(3, 3, seed=1))
    torch.testing.assert_close(mixed, same)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("length", [3, 17])
def test_an_encoder_gives_in_evaluation_what_it_gives_in_training(length):
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(8, 2, 13, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2)
    given, padding = rows(2, length, 8), torch.zeros(2, length, dtype=torch.bool)
    padding[0, 2:] = True
    with torch.no_grad():
        trained, evaluated = (encoder.train(mode)(given, src_key_padding_mask=padding) for mode in (True, False))
        assert not evaluated[0, 2:].any() and trained[0, 2:].any()  # torch drops padding in evaluation only
        torch.testing.assert_close(trained[~padding], evaluated[~padding])
        replace(encoder)
        for mode in (True, False):
            ours = encoder.train(mode)(given, src_key_padding_mask=padding)
            torch.testing.assert_close(ours, trained)


def test_the_short_path_of_evaluation_and_the_usual_one_agree():
    _, ours = pair(8, 2, batch_first=True)
    ours.eval()
    generator = torch.Generator().manual_seed(0)
    for trial in range(40):
        length = 1 + trial % 15
        given = rows(3, length, 8, seed=trial)
        if trial % 3 == 0:
            given[0, trial % length] = torch.nan
        masks = {}
        if trial % 2:
            masks["key_padding_mask"] = torch.rand(3, length, generator=generator) < 0.5
        if trial % 5:
            masks["attn_mask"] = torch.rand(length, length, generator=generator) < 0.5
        for average in (True, False):
            found = []
            for enabled in (True, False):
                torch.backends.mha.set_fastpath_enabled(enabled)
                try:
                    with torch.no_grad():
                        found.append(ours(given, given, given, average_attn_weights=average, **masks))
                finally:
                    torch.backends.mha.set_fastpath_enabled(True)
            torch.testing.assert_close(*found, equal_nan=True, rtol=1e-5, atol=1e-5)


def test_a_subclass_of_ours_is_still_the_layer():
    class Named(MultiheadAttention):
        pass

    given = rows(2, 3, 6)
    layer = Named(6, 2, batch_first=True)
    assert layer(given, given, given)[0].shape == (2, 3, 6)
