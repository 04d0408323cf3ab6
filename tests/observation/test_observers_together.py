"""Several observers at once, and names that Python modules hold themselves."""

import sys
import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard
from regard.observation.coverage import PartialView


def module_of_python(name, source):
    """A Python module made of source, as if it had been imported."""
    made = types.ModuleType(name)
    sys.modules[name] = made
    exec(compile(source, f"{name}.py", "exec"), made.__dict__)
    return made


ALIASED = """
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as look

class Aliased(nn.Module):
    def forward(self, x):
        return look(x, x, x)
"""


def drawn():
    return torch.randn(2, 3, 7, 5)


def test_a_function_under_another_name_is_seen_also_by_a_second_observer():
    home = module_of_python("regard_aliased_for_test", ALIASED)
    try:
        original, first, second = home.look, nn.MultiheadAttention(6, 2), home.Aliased()
        with pytest.warns(PartialView), regard.observe(first), regard.observe(second) as seen:
            second(drawn())
        assert seen.names() == ["Aliased"]
        assert home.look is original
    finally:
        del sys.modules["regard_aliased_for_test"]


def test_observers_may_leave_in_any_order():
    home = module_of_python("regard_order_for_test", ALIASED)
    try:
        model, original = home.Aliased(), F.scaled_dot_product_attention
        one, two = regard.observe(model), regard.observe(model)
        first, second = one.__enter__(), two.__enter__()
        model(drawn())
        one.__exit__(None, None, None)
        model(drawn())
        two.__exit__(None, None, None)
        model(drawn())
        assert (first["Aliased"].calls, second["Aliased"].calls) == (1, 2)
        assert F.scaled_dot_product_attention is original
        assert "forward" in vars(home.Aliased) and not hasattr(home.Aliased.forward, "_regard_original")
    finally:
        del sys.modules["regard_order_for_test"]


def test_an_inherited_forward_is_inherited_again():
    class Child(nn.MultiheadAttention):
        pass

    layer = Child(6, 2)
    x = torch.randn(5, 3, 6)
    with regard.observe(layer) as seen:
        layer(x, x, x)
    assert seen.names() == ["Child"] and "forward" not in vars(Child)


def test_checkpointed_layers_are_seen_once():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.map = nn.Linear(5, 5)

        def inner(self, x):
            x = self.map(x)
            return F.scaled_dot_product_attention(x, x, x)

        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False)

    model = Own()
    with regard.observe(model) as seen:
        model(drawn()).sum().backward()  # which computes the layer once more
    assert seen["Own"].calls == 1


def test_under_autocast_weights_are_those_of_the_rounded_inputs():
    class Own(nn.Module):
        def __init__(self, call):
            super().__init__()
            self.call = call

        def forward(self, x, y):
            return self.call(x, y, torch.eye(7).expand(2, 3, 7, 7))  # so that the output is the weights

    x, y = drawn() * 8, drawn() * 8
    for call in (F.scaled_dot_product_attention, regard.attend):
        model = Own(call)
        with torch.autocast("cpu", torch.bfloat16), regard.observe(model) as seen:
            out = model(x, y)
        weights = seen["Own"].weights()
        assert weights.dtype == torch.bfloat16
        torch.testing.assert_close(weights.float(), out.float(), atol=4e-3, rtol=8e-3)  # one rounding of bfloat16


class Shared(nn.Module):
    """One attention with a cache, applied twice in every forward pass, as ALBERT's layers are."""

    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x, caches):
        for at in range(2):
            caches[at] = torch.cat([caches[at], x], 2)
            x = self.inner(x, caches[at]) + 1
        return x


class Inner(nn.Module):
    def forward(self, x, keys):
        return F.scaled_dot_product_attention(x, keys, keys)


def test_steps_of_a_module_that_is_applied_twice_stay_with_their_application():
    model, caches = Shared(), [torch.zeros(1, 2, 0, 3) for _ in range(2)]
    with regard.observe(model) as seen:
        for length in (4, 1, 1):
            model(torch.randn(1, 2, length, 3), caches)
    assert seen.names() == ["inner", "inner#2"]
    for name in seen.names():
        site = seen[name]
        assert [site.shape(call)[2:] for call in range(site.calls)] == [(4, 4), (1, 5), (1, 6)]
        assert len({id(reading.key) for reading in site.readings}) == 1  # the steps share their keys


class Loop(nn.Module):
    """A decoder that goes step by step inside one forward pass."""

    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, rows, source):
        return torch.cat([self.inner(row, source) for row in rows.split(1, 2)], 2)


def test_steps_inside_one_forward_pass_are_calls_of_one_site_and_are_silenced_together():
    model, rows, source = Loop(), torch.randn(1, 2, 5, 3), torch.randn(1, 2, 7, 3)
    with regard.observe(model) as seen:
        out = model(rows, source)
    assert seen.names() == ["inner"] and seen["inner"].calls == 5
    found = seen.ablate({"inner": [1]}, loss=lambda output: output.abs().sum())
    assert abs(found.after - out[:, :1].abs().sum().item()) < 1e-5
