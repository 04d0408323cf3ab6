"""Values of users travel as text to the operators that compute with them, and arrive as they were."""

import copy
import json
import math
import pickle

import pytest
import torch

import regard
from regard import biases, masks, normalizers, scores
from regard.biases import Bias
from regard.normalizers import Normalizer
from regard.values.value import rebuild

TEXTS = ["", 'a"b', "a\\b", "a\\", "a\nb\tc", "\x00\x1f\u2028", "ä€😀", "\ud800", '","', "{}", "null", "#2"]
NUMBERS = [0, -0.0, 2**70, -3, 0.1, 1e-320, 1e300, math.inf, -math.inf, True, False, None]
TUPLES = [(), (1,), ((1, 2), (3, 4)), ((), ((),)), (("a", None), (True, (math.inf, 'x"'))), (1, 1.0, "1")]


class Declared(Normalizer):
    content: object = None
    seen = []  # noqa: RUF012

    def __call__(self, scores, visible):
        self.seen.append(self.content)
        return torch.softmax(scores.masked_fill(~visible, -math.inf), -1)


class Assigned(Normalizer):
    """Sets other attributes each time."""

    def __init__(self, **attributes):
        for name, content in attributes.items():
            setattr(self, name, content)

    def __call__(self, scores, visible):
        power = getattr(self, "power", 1.0) * getattr(self, "scale", torch.ones(()))
        return torch.softmax((scores * power + getattr(self, "shift", 0.0)).masked_fill(~visible, -math.inf), -1)


class Inherited(Assigned):
    """Has no `__init__` of its own."""


class Extended(Assigned):
    def __init__(self, power, **attributes):
        super().__init__(**attributes)
        self.power = power


def same(one, two):
    """Equal contents of equal types, all the way down; a negative zero is not a zero."""
    if isinstance(one, tuple) and isinstance(two, tuple):
        return len(one) == len(two) and all(same(a, b) for a, b in zip(one, two, strict=True))
    return type(one) is type(two) and (one == two or one != one) and str(one) == str(two)


@pytest.mark.parametrize("content", [*TEXTS, *NUMBERS, math.nan, *TUPLES], ids=ascii)
def test_a_content_arrives_as_it_was_given(content):
    value = Declared(content)
    assert same(rebuild(value.spec, value.tensors).content, content)
    json.loads(value.spec)
    assert value.spec.isascii(), "an operator takes it as a C string"
    x = torch.randn(1, 1, 5, 3)
    for impl in ("reference", "tiled", "auto"):
        Declared.seen.clear()
        regard.attend(x, x, x, normalize=value, impl=impl)
        assert Declared.seen and all(same(found, content) for found in Declared.seen), impl


def test_different_texts_make_different_values():
    values = [Declared(content) for content in TEXTS]
    assert len({value.spec for value in values}) == len(TEXTS)
    assert len(set(values)) == len(TEXTS)


@pytest.mark.parametrize(
    "content", [[1], {"a": 1}, {1}, b"bytes", object(), (1, [2])], ids=lambda one: type(one).__name__
)
def test_a_content_that_cannot_travel_is_refused_when_the_value_is_made(content):
    with pytest.raises(TypeError, match="a value can hold numbers, strings, tuples") as caught:
        Declared(content)
    assert isinstance(caught.value, regard.RegardError)


@pytest.mark.parametrize("kind", [Assigned, Inherited])
@pytest.mark.parametrize("impl", ["reference", "tiled", "auto"])
def test_instances_of_one_class_may_have_different_attributes(kind, impl):
    x = torch.randn(1, 1, 7, 3)
    first, second, third = kind(power=2.0), kind(shift=1.0, scale=torch.tensor(3.0)), kind()
    expected = [regard.attend(x, x, x, scale=factor / math.sqrt(3), impl="reference") for factor in (2, 3, 1)]
    for value, target in zip((first, second, third), expected, strict=True):
        torch.testing.assert_close(regard.attend(x, x, x, normalize=value, impl=impl), target)
        again = pickle.loads(pickle.dumps(copy.deepcopy(value)))
        assert again == value and repr(again) == repr(value)
        torch.testing.assert_close(regard.attend(x, x, x, normalize=again, impl=impl), target)
    assert len({first, second, third}) == 3
    assert kind(power=2.0) != kind(strength=2.0), "the names count"


def test_a_subclass_that_calls_the_constructor_of_its_parent_keeps_all_attributes():
    value = Extended(2.0, shift=1.0)
    again = rebuild(value.spec, value.tensors)
    assert (again.power, again.shift, type(again)) == (2.0, 1.0, Extended)
    assert "power=" in repr(value) or "2.0" in repr(value)


def test_a_value_with_a_constructor_of_its_own_cannot_be_changed_later():
    """`tiled` computes with a copy that was made of the spec, `reference` with the object: they would disagree."""
    value = Assigned(power=2.0)
    with pytest.raises(AttributeError, match="power: Assigned is a value") as caught:
        value.power = 3.0
    assert isinstance(caught.value, regard.RegardError)
    with pytest.raises(AttributeError):
        value.other = 3.0


@pytest.mark.parametrize(
    ("ours", "root"),
    [
        (masks.causal(), "Mask"),
        (masks.causal() & masks.window(1), "Mask"),
        (masks.prefix(3), "Mask"),
        (biases.alibi(2), "Bias"),
        (scores.dot(), "Score"),
        (scores.scaled_dot(), "Score"),
        (normalizers.softmax(), "Normalizer"),
        (normalizers.entmax15(), "Normalizer"),
    ],
    ids=lambda one: one if isinstance(one, str) else type(one).__name__,
)
def test_a_class_derived_from_one_of_ours_is_refused_where_it_is_defined(ours, root):
    """Kernels take an instance for what our class computes: `auto` ignored what such a class defined."""
    with pytest.raises(TypeError, match=f"derived from {type(ours).__name__}.*Derive it from {root}") as caught:
        type("Mine", (type(ours),), {})
    assert isinstance(caught.value, regard.RegardError)
    type("Mine", (Inherited,), {})


def powered(number):
    class Local(Normalizer):
        def __call__(self, scores, visible):
            return torch.softmax(number * scores.masked_fill(~visible, -math.inf), -1)

    return Local


@pytest.mark.parametrize("impl", ["reference", "tiled"])
def test_two_classes_of_one_name_are_not_mixed_up(impl):
    """A function that makes classes, or a notebook cell that ran twice, while older instances are still used."""
    x = torch.randn(1, 1, 7, 3)
    old, new = powered(2.0)(), powered(5.0)()
    for value, factor in ((old, 2.0), (new, 5.0), (old, 2.0)):
        expected = regard.attend(x, x, x, scale=factor / math.sqrt(3), impl="reference")
        torch.testing.assert_close(regard.attend(x, x, x, normalize=value, impl=impl), expected)
    assert old != new
    assert repr(old) == repr(new), "the number behind a kind is not shown"


class Shifted(Bias):
    label: str = ""
    steps: tuple = ()

    def values(self, grid, dtype):
        assert self.label == 'a"b' and self.steps == ((1, 2), (3,))
        return -grid.distance.abs().to(dtype)


def test_a_bias_of_the_user_travels_too():
    x = torch.randn(1, 1, 7, 3)
    bias = Shifted('a"b', ((1, 2), (3,)))
    torch.testing.assert_close(
        regard.attend(x, x, x, bias=bias, impl="tiled"), regard.attend(x, x, x, bias=bias, impl="reference")
    )


@pytest.mark.slow
def test_values_with_any_content_are_built_inside_a_compiled_function(fresh_tracer):
    def function(x, factor):
        out = regard.attend(x, x, x, normalize=Declared(('a"b\\\n', (math.inf, None, 2))), impl="tiled")
        capped = regard.attend(x, x, x, score=scores.softcap(factor), mask=masks.window(2))
        return out + capped

    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="eager")
    x = torch.randn(1, 2, 19, 3)
    for factor in (0.5, 2.0, 3.5):  # a float that changes becomes symbolic, which no text can hold
        torch.testing.assert_close(compiled(x, factor), function(x, factor))
