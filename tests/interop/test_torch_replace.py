"""`replace` swaps torch's multi-head attention inside a model for ours, in place; `restore` swaps it back."""

import copy
import pickle

import pytest
import torch
from torch import nn

import regard
from regard.interop.torch import MultiheadAttention, replace, restore
from tests.interop.torch_layers import rows

pytestmark = pytest.mark.filterwarnings(
    "ignore:enable_nested_tensor is True, but", "ignore:The PyTorch API of nested tensors"
)


def attention_of(model):
    return [module for module in model.modules() if isinstance(module, nn.MultiheadAttention)]


def small_transformer(**options):
    torch.manual_seed(2)
    return nn.Transformer(10, 2, 2, 3, 17, dropout=0.0, batch_first=True, **options)


class Twice(nn.Module):
    """One attention layer under two names, and another one inside a list of a list."""

    def __init__(self):
        super().__init__()
        self.first = nn.MultiheadAttention(6, 2, batch_first=True)
        self.again = self.first
        self.more = nn.ModuleList([nn.Sequential(nn.Linear(6, 6)), nn.ModuleDict({"a": nn.MultiheadAttention(6, 3)})])

    def forward(self, given):
        found = self.first(given, given, given)[0]
        return self.again(found, found, found)[0]


def test_every_layer_of_a_transformer_is_swapped_and_the_results_stay():
    model = small_transformer()
    source, target = rows(3, 19, 10), rows(3, 7, 10, seed=1)
    later = nn.Transformer.generate_square_subsequent_mask(7)
    padding = torch.zeros(3, 19, dtype=torch.bool)
    padding[1, 11:] = True
    options = {
        "tgt_mask": later,
        "tgt_is_causal": True,
        "src_key_padding_mask": padding,
        "memory_key_padding_mask": padding,
    }
    before = model(source, target, **options)
    grads = torch.autograd.grad(before.square().sum(), list(model.parameters()))
    assert replace(model) is model
    assert len(attention_of(model)) == 2 + 3 * 2
    assert all(type(layer) is MultiheadAttention for layer in attention_of(model))
    after = model(source, target, **options)
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-5)
    new = torch.autograd.grad(after.square().sum(), list(model.parameters()))
    torch.testing.assert_close(new, grads, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", ["training", "evaluation", "no-gradient"])
def test_every_layer_of_an_encoder_is_called_after_replace(mode):
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 13, batch_first=True), 2)
    replace(encoder).train(mode == "training")
    called = []
    for layer in attention_of(encoder):  # not by hooks, which switch torch's fast path off by themselves
        layer.forward = lambda *inputs, layer=layer, **options: (
            called.append(layer),
            type(layer).forward(layer, *inputs, **options),
        )[1]
    padding = torch.tensor([[False, False, True], [False, True, True]])
    with torch.set_grad_enabled(mode != "no-gradient"):
        encoder(rows(2, 3, 8), src_key_padding_mask=padding)
    assert called == attention_of(encoder)


def test_the_object_its_parameters_and_all_that_hangs_on_it_stay_the_same():
    model = Twice().double().eval()
    model.first.in_proj_weight.requires_grad_(False)
    seen = []
    model.first.register_forward_hook(lambda module, inputs, output: seen.append(type(module)))
    objects = dict(model.named_modules(remove_duplicate=False))
    parameters = list(model.parameters())
    before = model(rows(2, 3, 6, dtype=torch.float64))
    replace(model)
    assert all(one is objects[name] for name, one in model.named_modules(remove_duplicate=False))
    assert all(mine is other for mine, other in zip(model.parameters(), parameters, strict=True))
    assert model.first is model.again and type(model.more[1]["a"]) is MultiheadAttention
    assert not model.first.training and not model.first.in_proj_weight.requires_grad
    torch.testing.assert_close(model(rows(2, 3, 6, dtype=torch.float64)), before)
    assert seen == [nn.MultiheadAttention] * 2 + [MultiheadAttention] * 2


def test_restore_brings_back_what_was_there():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 13, batch_first=True, activation="gelu"), 2)
    attributes = [(m, n, v) for m in encoder.modules() for n, v in vars(m).items() if isinstance(v, int | str)]
    names = [set(vars(module)) for module in encoder.modules()]
    restore(replace(replace(encoder)))
    assert all(type(layer) is nn.MultiheadAttention for layer in attention_of(encoder))
    assert all(vars(module)[name] == content for module, name, content in attributes)
    assert [set(vars(module)) for module in encoder.modules()] == names


def test_a_layer_by_itself_is_swapped_in_place():
    layer = nn.MultiheadAttention(6, 2)
    assert replace(layer) is layer and type(layer) is MultiheadAttention
    assert type(restore(layer)) is nn.MultiheadAttention


def test_subclasses_and_layers_with_a_forward_of_their_own_stay_and_are_named():
    class Special(nn.MultiheadAttention):
        def forward(self, query, key, value, **options):
            return query, None

    model = nn.ModuleDict({"special": Special(6, 2), "patched": nn.MultiheadAttention(6, 2)})
    model["patched"].forward = lambda query, key, value: (query, None)
    with pytest.warns(UserWarning, match=r"left special \(Special\), patched \(MultiheadAttention\) as it is"):
        replace(model)
    assert type(model["special"]) is Special and type(model["patched"]) is nn.MultiheadAttention


def test_a_parametrised_layer_stays_and_is_named():
    layer = nn.MultiheadAttention(6, 2)
    nn.utils.parametrizations.weight_norm(layer, "in_proj_weight")
    with pytest.warns(UserWarning, match="the model itself"):
        replace(layer)


def test_a_scripted_layer_stays_and_is_named():
    model = nn.Sequential(torch.jit.script(nn.MultiheadAttention(6, 2)))
    with pytest.warns(UserWarning, match="left 0 "):
        replace(model)


def test_a_model_without_attention_is_said_to_have_none():
    with pytest.warns(UserWarning, match="Linear contains no torch.nn.MultiheadAttention"):
        replace(nn.Linear(2, 3))
    with pytest.raises(regard.BadType, match=r"model: expected a torch\.nn\.Module, got 3"):
        replace(3)


def test_a_replaced_model_is_copied_pickled_and_loaded():
    model = replace(small_transformer()).eval()
    source, target = rows(2, 5, 10), rows(2, 3, 10, seed=1)
    with torch.no_grad():
        expected = model(source, target)
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert all(type(layer) is MultiheadAttention for layer in attention_of(other))
            assert torch.equal(other(source, target), expected)
        fresh = small_transformer().eval()
        fresh.load_state_dict(model.state_dict())
        torch.testing.assert_close(fresh(source, target), expected)
        assert torch.equal(replace(fresh)(source, target), expected)


def test_a_replaced_model_trains():
    torch.manual_seed(0)
    model = replace(nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 13, batch_first=True), 2))
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    given = rows(11, 5, 8)
    target = given.flip(1)
    losses = []
    for _ in range(30):
        loss = nn.functional.mse_loss(model(given), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


def test_attention_of_a_replaced_model_is_seen_by_observe():
    model = replace(nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 13, batch_first=True), 2)).eval()
    for length in (5, 19):
        given = rows(2, length, 8)
        with torch.no_grad(), regard.observe(model) as seen:
            model(given)
        assert seen.names() == ["layers.0.self_attn", "layers.1.self_attn"]
        with torch.no_grad():
            layer = model.layers[0].self_attn
            _, weights = layer(given, given, given, average_attn_weights=False)
        torch.testing.assert_close(seen["layers.0.self_attn"].weights(), weights, rtol=1e-5, atol=1e-6)
