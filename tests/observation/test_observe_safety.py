"""Observing leaves nothing behind in the model, in torch or in memory, and costs little time."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import flex_attention as flex
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import regard
from tests.observation import peers
from tests.observation.objects import leave_out_older, newer_tensors
from tests.observation.peers import BAR, largest


class Own(nn.Module):
    """Three projections and the fused call."""

    def __init__(self, dim=24, heads=3, fail=False):
        super().__init__()
        self.project = nn.Linear(dim, 3 * dim)
        self.heads, self.fail = heads, fail

    def forward(self, x):
        q, k, v = self.project(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v)
        if self.fail:
            raise KeyError("on purpose")
        return out.transpose(1, 2).flatten(2)

    def expected(self, x):
        q, k, _ = self.project(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1)


def traces(model):
    """Everything that an observer may patch."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS as table

    parts = [
        F.scaled_dot_product_attention,
        F.softmax,
        F.multi_head_attention_forward,
        torch.softmax,
        torch.bmm,
        torch.Tensor.softmax,
        flex.flex_attention,
        nn.MultiheadAttention.forward,
        nn.Module.__call__,
        nn.TransformerEncoderLayer.forward,
        nn.TransformerEncoder.forward,
        torch.matmul,
        torch._native_multi_head_attention,
        regard.attend,
    ]
    hooks = [
        (len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks), sorted(vars(m)))
        for m in model.modules()
    ]
    everywhere = (len(nn.modules.module._global_forward_hooks), len(nn.modules.module._global_forward_pre_hooks))
    modes = torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()
    registered = {name: table[name] for name in ("sdpa", "flex_attention")}
    return [id(part) for part in parts], hooks, everywhere, modes, {k: id(v) for k, v in registered.items()}


MODELS = {
    "own": lambda: (Own(), (torch.randn(2, 7, 24),)),
    "torch": lambda: (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(24, 4, 29, batch_first=True), 2).eval(),
        (torch.randn(2, 7, 24),),
    ),
    "bert": lambda: (peers.small("bert"), (peers.ids(11),)),
    "ours": lambda: (regard.nn.build("multihead", dim=24, num_heads=3), (torch.randn(2, 7, 24),)),
}


@pytest.mark.parametrize("kind", MODELS)
def test_nothing_is_left_patched(kind):
    model, given = MODELS[kind]()
    before = traces(model)
    with torch.no_grad(), regard.observe(model) as seen:
        model(*given)
    assert traces(model) == before
    assert len(seen) > 0
    seen[seen.names()[0]].weights()
    assert traces(model) == before


@pytest.mark.parametrize("kind", MODELS)
def test_nothing_is_left_patched_after_an_exception(kind):
    model, given = MODELS[kind]()
    before = traces(model)
    with pytest.raises(KeyError, match="on purpose"), regard.observe(model):
        model(*given)
        raise KeyError("on purpose")
    assert traces(model) == before


def test_an_exception_inside_the_model_passes_through():
    model, x = Own(fail=True), torch.randn(2, 7, 24)
    before = traces(model)
    with pytest.raises(KeyError, match="on purpose"), regard.observe(model) as seen:
        model(x)
    assert traces(model) == before
    model.fail = False
    with regard.observe(model) as seen:
        model(x)
    assert largest(seen[seen.names()[0]].weights(), model.expected(x)) <= BAR


def test_nested_observers_both_see():
    model, x, y = Own(), torch.randn(2, 7, 24), torch.randn(2, 5, 24)
    before = traces(model)
    with regard.observe(model) as outer:
        model(x)
        with regard.observe(model) as inner:
            model(y)
    assert traces(model) == before
    name = outer.names()[0]
    assert outer[name].calls == 2 and inner[name].calls == 1
    assert largest(inner[name].weights(), model.expected(y)) <= BAR
    assert largest(outer[name].weights(call=0), model.expected(x)) <= BAR
    assert largest(outer[name].weights(call=1), model.expected(y)) <= BAR


def test_two_models_observed_at_once_are_kept_apart():
    one, two, x = Own(), Own(), torch.randn(2, 7, 24)
    with regard.observe(one) as first, regard.observe(two) as second:
        one(x)
        two(x)
    assert largest(first[first.names()[0]].weights(), one.expected(x)) <= BAR
    assert largest(second[second.names()[0]].weights(), two.expected(x)) <= BAR
    assert [len(first), len(second)] == [1, 1]
    assert [first[first.names()[0]].calls, second[second.names()[0]].calls] == [1, 1]


def test_observing_again_starts_anew():
    model, x = Own(), torch.randn(2, 7, 24)
    for _ in range(3):
        with regard.observe(model) as seen:
            model(x)
        assert seen[seen.names()[0]].calls == 1


def test_calls_outside_of_the_model_are_not_its_sites():
    model, x = Own(), torch.randn(2, 7, 24)
    other = torch.randn(2, 3, 5, 8)
    with regard.observe(model) as seen:
        F.scaled_dot_product_attention(other, other, other)
        model(x)
    shapes = [seen[name].shape() for name in seen.names()]
    assert (2, 3, 7, 7) in shapes
    assert seen[seen.names()[shapes.index((2, 3, 7, 7))]].calls == 1


class Overwriting(Own):
    """A model that overwrites the memory of its queries."""

    def forward(self, x):
        q, k, v = (part.clone() for part in self.project(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4))
        out = F.scaled_dot_product_attention(q, k, v)
        k.zero_()
        return out


def test_weights_of_a_tensor_changed_in_place_are_refused():
    model, x = Overwriting(), torch.randn(2, 7, 24)
    with torch.no_grad(), regard.observe(model) as seen:
        model(x)
    site = seen[seen.names()[0]]
    try:
        shown = site.weights()
    except regard.RegardError as error:
        assert "place" in str(error) or "changed" in str(error)
    else:
        assert largest(shown, model.expected(x)) <= BAR


def test_a_weight_that_is_trained_afterwards_does_not_change_what_was_seen():
    """Where inputs are stored and projected later, an optimiser step in between is a change in place."""
    layer = nn.TransformerEncoderLayer(24, 4, 29, batch_first=True, dropout=0.0).eval()
    x = torch.randn(2, 7, 24)
    with torch.no_grad():
        expected = layer.self_attn(x, x, x, need_weights=True, average_attn_weights=False)[1]
        with regard.observe(layer) as seen:
            layer(x)
        layer.self_attn.in_proj_weight.mul_(2)
    try:
        shown = seen[seen.names()[0]].weights()
    except regard.RegardError:
        return
    assert largest(shown, expected) <= BAR


class Largest(TorchDispatchMode):
    """Records the largest tensor that is allocated."""

    numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage().nbytes() // leaf.element_size()
                self.numel = max(self.numel, min(leaf.numel(), storage))
        return out


@pytest.mark.slow
def test_no_array_of_all_pairs_is_stored_or_allocated():
    """Work goes by blocks of rows whose size does not grow with the length."""
    length = 6000

    leave_out_older()
    model, x = Own(dim=8, heads=1), torch.randn(1, length, 8)
    with torch.no_grad(), regard.observe(model) as seen:
        model(x)
    assert not [tensor for tensor in newer_tensors() if tensor.numel() >= length * length // 8]
    site = seen[seen.names()[0]]
    for ask in (
        lambda: site.weights(rows=[3, 1000]),
        lambda: site.columns_of([5]),
        site.summary,
        lambda: site.pooled(48, 48),
        lambda: site.pooled(48, 48, sampled=False),
    ):
        with torch.no_grad(), Largest() as made:
            ask()
        assert made.numel <= length * length // 8


class Work(TorchDispatchMode):
    """Counts operators, and the elements of what they make anew."""

    def __init__(self):
        super().__init__()
        self.operators = self.elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        given, made = (
            [leaf for leaf in tree_leaves(some) if isinstance(leaf, torch.Tensor)] for some in ((args, kwargs), out)
        )
        old = {leaf.untyped_storage().data_ptr() for leaf in given}
        self.operators += 1
        self.elements += sum(leaf.numel() for leaf in made if leaf.untyped_storage().data_ptr() not in old)
        return out


@torch.no_grad()
def test_observing_costs_little():
    """Hardly more is computed, whatever a clock says; `python -m bench.observe overhead` measures time."""
    layers = 4
    layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
    model, x = nn.TransformerEncoder(layer, layers), torch.randn(2, 128, 128)
    with Work() as plain:
        model(x)
    with Work() as observed, regard.observe(model):
        model(x)
    assert observed.elements <= 1.01 * plain.elements
    assert observed.operators <= plain.operators + 10 * layers


@pytest.mark.parametrize("options", [{"dtype": torch.bfloat16}, {"device": "cpu"}], ids=str)
def test_tensors_may_be_stored_narrower_or_elsewhere(options):
    model, x = Own(), torch.randn(2, 7, 24)
    with torch.no_grad(), regard.observe(model, **options) as seen:
        model(x)
    bar = 2e-2 if "dtype" in options else BAR
    assert largest(seen[seen.names()[0]].weights(), model.expected(x)) <= bar
