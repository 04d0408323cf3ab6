"""Names with options, as they stand on a command line."""

import pytest

import regard
from regard.registry import parse, split


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("local", "local", {}),
        (" local() ", "local", {}),
        ("local(window=65)", "local", {"window": 65}),
        ("f(a=-1.5, b=True, c=None)", "f", {"a": -1.5, "b": True, "c": None}),
        ("f(d='x, y', e=(1, 2))", "f", {"d": "x, y", "e": (1, 2)}),
        ("relative(positions=transformer-xl)", "relative", {"positions": "transformer-xl"}),
        ("decoder(attention=global-query)", "decoder", {"attention": "global-query"}),
        (
            "decoder(attention=local(window=4, causal=True), layers=2)",
            "decoder",
            {"attention": "local(window=4, causal=True)", "layers": 2},
        ),
        ("a(b=c(d=e(f=1)))", "a", {"b": "c(d=e(f=1))"}),
    ],
)
def test_a_call_is_read(text, name, options):
    assert parse(text) == (name, options)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "3",
        "a b",
        "f(x)",
        "f(x=)",
        "f(=3)",
        "f(x=1 2)",
        "f(x=1",
        "f x=1)",
        "f(**k)",
        "f(x=__import__('os').getcwd())",
        "f(1)",
    ],
)
def test_what_is_no_call_is_refused(text):
    with pytest.raises(regard.RegardError, match="expected NAME"):
        parse(text)


def test_what_is_no_text_is_refused():
    with pytest.raises(regard.RegardError, match="expected a text"):
        parse(3)


def test_lists_are_split_at_commas_outside_of_brackets():
    assert split("a, b(c=1, d=2) ,e('x,y'),") == ["a", " b(c=1, d=2) ", "e('x,y')"]
