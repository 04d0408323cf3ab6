"""Wrong arguments are answered in torch's words, as errors of regard; nested tensors where torch takes them."""

import pytest
import torch

import regard
from regard.interop.torch import MultiheadAttention, TorchMisuse
from tests.interop.torch_layers import pair, rows

ROWS = rows(2, 5, 15)
LAYER = pair(batch_first=True)[1]
WRONG = {
    "four-axes": ((ROWS[None],) * 3, {}, "unbatched 2D or batched 3D tensor but received 4-D"),
    "key-axes": ((ROWS, ROWS[0], ROWS), {}, "`key` and `value` to be 3-D but found 2-D and 3-D"),
    "value-axes": ((ROWS[0], ROWS[0], ROWS), {}, "`key` and `value` to be 2-D but found 2-D and 3-D"),
    "width": ((ROWS[..., :14],) * 3, {}, "was expecting embedding dimension of 15, but got 14"),
    "key-width": ((ROWS, ROWS[..., :14], ROWS), {}, r"key: was expecting a width of 15 \(kdim\), but got 14"),
    "lengths": ((ROWS, ROWS, ROWS[:, :3]), {}, r"key shape \(2, 5, 15\) does not match value shape \(2, 3, 15\)"),
    "batch": ((ROWS, ROWS[:1], ROWS[:1]), {}, "expected the query's batch of 2.*batch_first=True decides"),
    "padding-axes": ((ROWS,) * 3, {"key_padding_mask": torch.zeros(5) > 0}, "to be `None` or 2-D but found 1-D"),
    "padding-size": ((ROWS,) * 3, {"key_padding_mask": torch.zeros(2, 7) > 0}, r"shape\[1\] to be 5, but got 7"),
    "padding-batch": ((ROWS,) * 3, {"key_padding_mask": torch.zeros(3, 5) > 0}, r"shape\[0\] to be 2, but got 3"),
    "mask-axes": ((ROWS,) * 3, {"attn_mask": torch.zeros(5) > 0}, "`None`, 2-D or 3-D but found 1-D"),
    "mask-size": ((ROWS,) * 3, {"attn_mask": torch.zeros(5, 3)}, r"2D attn_mask is .*\[5, 3\].*should be \(5, 5\)"),
    "mask-heads": ((ROWS,) * 3, {"attn_mask": torch.zeros(2, 5, 5)}, r"`attn_mask` shape to be \(6, 5, 5\)"),
    "mask-dtype": ((ROWS,) * 3, {"attn_mask": torch.ones(5, 5).long()}, "only bool and floating types of attn_mask"),
    "padding-dtype": ((ROWS,) * 3, {"key_padding_mask": torch.ones(2, 5).byte()}, "types of key_padding_mask"),
    "hint-alone": ((ROWS,) * 3, {"is_causal": True}, "Need attn_mask if specifying the is_causal hint"),
}


@pytest.mark.parametrize(("inputs", "options", "words"), WRONG.values(), ids=list(WRONG))
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_a_wrong_argument_is_refused_in_the_words_of_torch(inputs, options, words, training):
    LAYER.train(training)
    for kind in (TorchMisuse, regard.RegardError, AssertionError, RuntimeError, ValueError):
        with torch.no_grad(), pytest.raises(kind, match=words):
            LAYER(*inputs, **options)


@pytest.mark.parametrize("wrong", [None, 3, [[1.0]], torch.zeros(2, 5, 15).long()], ids=["none", "int", "list", "long"])
def test_what_is_no_tensor_of_numbers_is_refused(wrong):
    with pytest.raises(regard.BadType, match="key: expected a floating-point tensor, got "):
        LAYER(ROWS, wrong, ROWS)
    if not isinstance(wrong, torch.Tensor) and wrong is not None:
        with pytest.raises(regard.BadType, match="attn_mask: expected a bool or floating-point tensor or None"):
            LAYER(ROWS, ROWS, ROWS, attn_mask=wrong)


def test_a_causal_mask_of_another_size_is_accepted_with_the_hint():
    larger = torch.nn.Transformer.generate_square_subsequent_mask(11)
    expected = LAYER(ROWS, ROWS, ROWS, attn_mask=larger[:5, :5])[0]
    torch.testing.assert_close(LAYER(ROWS, ROWS, ROWS, attn_mask=larger, is_causal=True)[0], expected)


@pytest.mark.parametrize(("embed_dim", "heads"), [(0, 1), (4, 0), (-3, 3)])
def test_sizes_below_one_are_refused_by_the_constructor(embed_dim, heads):
    with pytest.raises(ValueError, match="must be greater than 0"):
        MultiheadAttention(embed_dim, heads)
    with pytest.raises(AssertionError, match="divisible"):
        MultiheadAttention(7, 2)


def jagged(*lengths, seed=0):
    return torch.nested.nested_tensor(
        [rows(length, 15, seed=seed + i) for i, length in enumerate(lengths)], layout=torch.jagged
    )


@pytest.mark.parametrize("options", [{}, {"add_bias_kv": True}, {"add_zero_attn": True}], ids=str)
def test_jagged_sequences_give_what_each_gives_alone_and_receive_gradient(options):
    _, ours = pair(batch_first=True, **options)
    queries, keys = jagged(4, 19, 1), jagged(3, 17, 6, seed=50)
    output, weights = ours(queries, keys, keys, average_attn_weights=False)
    assert output.is_nested and weights.shape == (3, 3, 19, 17 + len(options))
    loss = sum(part.square().sum() for part in output.unbind())
    gradient = torch.autograd.grad(loss, ours.in_proj_weight)[0]
    total = 0.0
    for i, (found, query, key) in enumerate(zip(output.unbind(), queries.unbind(), keys.unbind(), strict=True)):
        alone, shares = ours(query, key, key, average_attn_weights=False)
        torch.testing.assert_close(found, alone)
        torch.testing.assert_close(weights[i, :, : len(query), : len(key)], shares[..., : len(key)])
        assert not weights[i, :, len(query) :].any()
        total = total + alone.square().sum()
    torch.testing.assert_close(gradient, torch.autograd.grad(total, ours.in_proj_weight)[0], rtol=1e-4, atol=1e-4)


def test_the_output_of_jagged_self_attention_can_be_added_to_its_input():
    given = jagged(4, 7)
    summed = given + LAYER(given, given, given, need_weights=False)[0]
    assert [len(part) for part in summed.unbind()] == [4, 7]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_strided_nested_tensors_are_taken_without_gradient_and_refused_with_it():
    theirs, ours = pair(18, 2, batch_first=True)
    given = torch.nested.nested_tensor([rows(4, 18), rows(7, 18, seed=1)])
    with torch.no_grad():
        found, expected = (layer.eval()(given, given, given, need_weights=False)[0] for layer in (ours, theirs))
    assert found.is_nested and found.layout == torch.strided
    for mine, other in zip(found.unbind(), expected.unbind(), strict=True):
        torch.testing.assert_close(mine, other)
    with pytest.raises(TorchMisuse, match=r"outside of its fast path.*grad is enabled and.*layout=torch.jagged"):
        ours(given, given, given)


def test_nested_tensors_beside_others_or_with_masks_are_refused():
    given = jagged(4, 7)
    with pytest.raises(TorchMisuse, match="expected query, key and value to be nested all three"):
        LAYER(given, ROWS, ROWS)
    with pytest.raises(TorchMisuse, match="neither key_padding_mask nor attn_mask"):
        LAYER(given, given, given, key_padding_mask=torch.zeros(2, 7) > 0)
    with pytest.raises(TorchMisuse, match="batch_first was not True"):
        pair()[1](given, given, given)
