"""Code that compares functions by identity computes the same bits while it is observed."""

import copy
import functools
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.overrides import TorchFunctionMode

import regard
from regard.observation.coverage import PartialView

ALIAS = F.scaled_dot_product_attention
BY_NAME = {"fused": F.scaled_dot_product_attention}


class Fused(nn.Module):
    """The fused call, reached in one of several ways."""

    def __init__(self, call=None):
        super().__init__()
        self.call = call

    def forward(self, q, k, v, **options):
        call = self.call or F.scaled_dot_product_attention
        return call(q, k, v, **options)


class Logged(torch.Tensor):
    """A tensor subclass that overrides one function, which it recognises in a given way."""

    find = None

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if cls.find(func):
            plain = [part.as_subclass(torch.Tensor) if isinstance(part, cls) else part for part in args]
            return func(*plain, **(kwargs or {})) + 100
        return super().__torch_function__(func, types, args, kwargs)


def drawn(q=3, k=7, heads=2):
    torch.manual_seed(5)
    return torch.randn(1, heads, q, 5), torch.randn(1, heads, k, 5), torch.randn(1, heads, k, 5)


def by_hand(q, k, v, diagonal):
    visible = torch.ones(q.shape[-2], k.shape[-2]).tril(diagonal).bool()
    weights = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~visible, -torch.inf).softmax(-1)
    return weights, weights @ v


WAYS = {
    "by its name": lambda: None,
    "from a table": lambda: lambda *given, **named: BY_NAME["fused"](*given, **named),
    "from a partial": lambda: functools.partial(ALIAS),
    "as torch has it inside": lambda: (
        lambda *given, **named: torch._C._nn.scaled_dot_product_attention(*given, **named)
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make, diagonal", [(causal_upper_left, 0), (causal_lower_right, 4)])
def test_a_causal_bias_masks_as_it_does_unobserved(way, make, diagonal):
    model, (q, k, v) = Fused(WAYS[way]()), drawn()
    plain = model(q, k, v, attn_mask=make(3, 7))
    with regard.observe(model) as seen:
        observed = model(q, k, v, attn_mask=make(3, 7))
    weights, expected = by_hand(q, k, v, diagonal)
    assert torch.equal(plain, observed)
    torch.testing.assert_close(plain, expected)
    if way == "by its name":
        torch.testing.assert_close(seen["Fused"].weights(), weights)


def test_a_square_causal_bias_is_aligned_at_the_top_whatever_the_queries_are():
    model, (q, k, v) = Fused(), drawn()
    with regard.observe(model) as seen:
        observed = model(q, k, v, attn_mask=causal_lower_right(7, 7))
    weights, expected = by_hand(q, k, v, 0)
    torch.testing.assert_close(observed, expected)
    torch.testing.assert_close(seen["Fused"].weights(), weights)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_nested_tensors_take_their_own_path():
    parts = [torch.randn(length, 2, 5) for length in (3, 7)]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged).transpose(1, 2)
    model = Fused()
    plain = model(nested, nested, nested)
    with regard.observe(model):
        observed = model(nested, nested, nested)
    assert torch.equal(plain.values(), observed.values())


TABLE = {F.scaled_dot_product_attention: "known"}
QUESTIONS = {
    "is an attribute": lambda func: func is torch.nn.functional.scaled_dot_product_attention,
    "is a name kept earlier": lambda func: func is ALIAS,
    "is a key of a table": lambda func: func in TABLE,
    "equals": lambda func: func == F.scaled_dot_product_attention,
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_tensor_subclass_recognises_the_function(question, monkeypatch):
    monkeypatch.setattr(Logged, "find", staticmethod(QUESTIONS[question]))
    q, k, v = drawn()
    plain = Fused()(q.as_subclass(Logged), k, v)
    assert plain.mean() > 50
    model = Fused()
    with regard.observe(model):
        observed = model(q.as_subclass(Logged), k, v)
    assert torch.equal(plain, observed)


@pytest.mark.parametrize("way", ["from a table", "from a partial"])
@pytest.mark.parametrize("question", ["is an attribute", "is a key of a table", "equals"])
def test_a_tensor_subclass_recognises_a_function_that_is_not_captured(way, question, monkeypatch):
    monkeypatch.setattr(Logged, "find", staticmethod(QUESTIONS[question]))
    model, (q, k, v) = Fused(WAYS[way]()), drawn()
    plain = model(q.as_subclass(Logged), k, v)
    with regard.observe(model):
        observed = model(q.as_subclass(Logged), k, v)
    assert torch.equal(plain, observed)


def test_a_tensor_subclass_recognises_a_function_of_python(monkeypatch):
    monkeypatch.setattr(Logged, "find", staticmethod(lambda func: func is F.multi_head_attention_forward))
    layer, x = nn.MultiheadAttention(6, 2), torch.randn(5, 1, 6)

    def run():
        with torch.no_grad():
            found = layer(x.as_subclass(Logged), x, x, need_weights=False)
        return found[0] if isinstance(found, tuple) else found

    monkeypatch.setattr(Logged, "__torch_function__", classmethod(_doubled))
    plain = run()
    with regard.observe(layer):
        observed = run()
    assert torch.equal(plain, observed)


def _doubled(cls, func, types, args=(), kwargs=None):
    found = torch.Tensor.__torch_function__.__func__(cls, func, types, args, kwargs or {})
    return (found[0] * 2, found[1]) if cls.find(func) else found


def test_a_function_mode_gets_the_original_function():
    class Names(TorchFunctionMode):
        def __init__(self):
            super().__init__()
            self.met = []

        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func is F.scaled_dot_product_attention:
                self.met.append(torch.overrides.resolve_name(func))
            return func(*args, **(kwargs or {}))

    model = Fused()
    with regard.observe(model) as seen, Names() as mode:
        model(*drawn())
    assert mode.met == ["torch.nn.functional.scaled_dot_product_attention"]
    assert seen.names() == ["Fused"]


def test_calls_under_a_default_device_are_captured():
    model = Fused()
    torch.set_default_device("cpu")
    try:
        with regard.observe(model) as seen:
            model(*drawn())
    finally:
        torch.set_default_device(None)
    assert seen.names() == ["Fused"]


def test_names_of_one_function_stay_identical():
    class Chosen(nn.Module):
        def __init__(self):
            super().__init__()
            self.call = F.scaled_dot_product_attention

        def forward(self, q, k, v):
            assert self.call is F.scaled_dot_product_attention is torch._C._nn.scaled_dot_product_attention
            return self.call(q, k, v)

    model = Chosen()
    with regard.observe(model) as seen, regard.observe(model) as again:
        model(*drawn())
    assert seen.names() == again.names() == ["Chosen"]
    assert model.call is F.scaled_dot_product_attention is ALIAS


def test_a_table_that_was_filled_inside_the_block_is_right_afterwards():
    with regard.observe():
        table = {F.scaled_dot_product_attention: "fused"}
        copies = copy.deepcopy(F.scaled_dot_product_attention), pickle.dumps(F.scaled_dot_product_attention)
    assert table[F.scaled_dot_product_attention] == "fused"
    assert copies[0] is ALIAS and pickle.loads(copies[1]) is ALIAS
    torch.overrides.get_testing_overrides.cache_clear()
    torch.overrides._get_overridable_functions.cache_clear()
    with regard.observe():
        torch.overrides.get_overridable_functions()
        assert torch.overrides.get_testing_overrides.cache_info().currsize
    assert any(key is ALIAS for key in torch.overrides.get_testing_overrides())
    assert any(part is ALIAS for part in torch.overrides.get_overridable_functions()[torch.nn.functional])


def test_a_graph_that_is_traced_inside_the_block_is_the_same():
    class Plain(nn.Module):
        def forward(self, q, k, v):
            return F.scaled_dot_product_attention(q, k, v)

    model = Plain()
    plain = torch.fx.symbolic_trace(model)
    with pytest.warns(PartialView), regard.observe(model) as seen:
        traced = torch.fx.symbolic_trace(model)
    assert [node.target for node in traced.graph.nodes] == [node.target for node in plain.graph.nodes]
    assert any(node.target is ALIAS for node in traced.graph.nodes)
    assert not seen.names()


def test_other_threads_and_nested_calls_leave_the_names_as_they_found_them():
    model, (q, k, v) = Fused(), drawn()
    with regard.observe(model) as seen:
        inside = F.scaled_dot_product_attention
        with pytest.raises(ValueError, match="causal"):
            model(q, k, v, attn_mask=causal_upper_left(3, 7), is_causal=True)
        assert F.scaled_dot_product_attention is inside
        model(q, k, v)
    assert seen["Fused"].calls == 1
    assert F.scaled_dot_product_attention is ALIAS is torch._C._nn.scaled_dot_product_attention
