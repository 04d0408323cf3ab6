"""Options in names: text becomes a value of the type that the option declares, or is refused."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pytest

import regard
from regard.registry import options_of
from regard.support.options import converted, read_options
from regard_workbench import models, tasks
from regard_workbench.comparison import search_space
from regard_workbench.tasks import HiddenTokens, NextToken, Problem, Tokens
from regard_workbench.training.config.recipe import complete

LANGUAGE = Problem.of(Tokens(7, length=31), NextToken(7))
FALSE = ["false", "False", "FALSE", "no", "off", "0"]
TRUE = ["true", "True", "yes", "ON", "1"]


@pytest.mark.parametrize(("words", "meaning"), [(FALSE, False), (TRUE, True)])
def test_a_layer_reads_a_word_as_the_truth_value_it_says(words, meaning):
    for word in words:
        assert regard.nn.build(f"multihead(causal={word})", dim=6).causal is meaning, word
        assert (regard.nn.build(f"causal(qk_norm={word})", dim=6).query_norm is not None) is meaning, word
        assert regard.nn.build("multihead", dim=6, causal=word).causal is meaning, word


@pytest.mark.parametrize(("words", "meaning"), [(FALSE, False), (TRUE, True)])
def test_a_model_reads_a_word_as_the_truth_value_it_says(words, meaning):
    for word in words:
        made = models.build(f"decoder(tied={word}, gated={word}, dim=8, num_heads=1, layers=1)", LANGUAGE)
        assert (made.head.logits.weight is made.embedding.rows.weight) is meaning, word
        assert (made.stack.layers[0].feed_forward.gate is not None) is meaning, word


@pytest.mark.parametrize(("words", "meaning"), [(FALSE, False), (TRUE, True)])
def test_a_task_reads_a_word_as_the_truth_value_it_says(words, meaning):
    for word in words:
        assert tasks.build(f"language(shift={word})").shift is meaning, word
    assert tasks.build("language", shift="no").shift is False


def test_an_attention_inside_a_model_is_read_alike():
    made = models.build(
        "encoder(dim=8, layers=1, num_heads=1, attention=multihead(causal=off, window=none))",
        Problem.of(Tokens(7, length=31), HiddenTokens(7, 1)),
    )
    layer = made.stack.layers[0].attention
    assert layer.causal is False and layer.window is None


def test_a_decoder_refuses_an_attention_that_says_it_is_not_causal():
    with pytest.raises(regard.RegardError, match=r"cannot attend to later positions.*causal=False"):
        models.build("decoder(dim=8, num_heads=1, attention=multihead(causal=false))", LANGUAGE)
    assert models.build("decoder(dim=8, num_heads=1, layers=1, attention=multihead(causal=yes))", LANGUAGE)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("multihead(causal=perhaps)", ["causal", "multihead", "true or false", "'perhaps'"]),
        ("multihead(causal=2)", ["causal", "true or false", "2"]),
        ("multihead(causal=None)", ["causal", "true or false", "None"]),
        ("multihead(window=many)", ["window", "a whole number or None", "'many'"]),
        ("multihead(window=2.5)", ["window", "a whole number or None", "2.5"]),
        ("multihead(window=True)", ["window", "a whole number or None", "True"]),
        ("multihead(window=(3, 5))", ["window", "a whole number or None", "(3, 5)"]),
        ("multihead(num_heads=none)", ["num_heads", "a whole number", "'none'"]),
        ("multihead(dropout=some)", ["dropout", "a number", "'some'"]),
        ("multihead(dropout=False)", ["dropout", "a number", "False"]),
        ("multihead(normalize=3)", ["normalize", "a text", "3 (int)", "normalize='3'"]),
    ],
)
def test_a_value_of_another_type_is_refused_with_what_the_option_takes(name, words):
    with pytest.raises((ValueError, TypeError)) as caught:
        regard.nn.build(name, dim=6)
    assert isinstance(caught.value, regard.RegardError)
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_models_and_tasks_refuse_in_the_same_words():
    with pytest.raises(regard.RegardError, match="tied: decoder takes true or false, got 'maybe'"):
        models.build("decoder(tied=maybe)", LANGUAGE)
    with pytest.raises(regard.RegardError, match="shift: language takes true or false, got 'maybe'"):
        tasks.build("language", shift="maybe")
    with pytest.raises(regard.RegardError, match="context: language takes a whole number, got 'long'"):
        tasks.build("language(context=long)")


@pytest.mark.parametrize(
    ("given", "kind", "found"),
    [
        ("65", int, 65),
        ("1e4", int, 10_000),
        (3.0, int, 3),
        (7, float, 7),
        ("2.5", float, 2.5),
        ("null", int | None, None),
        (None, int | None, None),
        ("none", str | None, "none"),  # a word like any other: a name may be `none`
        ("3", str | int | None, "3"),
        (3, str | int | None, 3),
        ("false", bool | str, False),
        ("words", bool | str, "words"),
        ("2,3", tuple[int, ...], (2, 3)),
        (["2", 3], list[int], [2, 3]),
        (("a", "b"), str | Sequence[str], ("a", "b")),
        ("a,b", str | Sequence[str], "a,b"),
        ("yes,no", list[bool], [True, False]),
        ((1, "2.5"), tuple[int, float], (1, 2.5)),
        ("both", Literal["one", "both"], "both"),
        (Path("a"), str | Path, Path("a")),
    ],
)
def test_the_declared_type_decides_what_a_value_means(given, kind, found):
    read = converted("it", given, kind, "this")
    assert read == found and type(read) is type(found)


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ("x", int),
        ("1,x", tuple[int, ...]),
        ((1, 2, 3), tuple[int, int]),
        ("all", Literal["one", "both"]),
        (3, Sequence[int]),
        (1.5, bool),
        ("", bool),
        ("", int),
        ([], str),
    ],
)
def test_a_value_that_does_not_convert_is_refused(given, kind):
    with pytest.raises(regard.RegardError, match="it: this takes"):
        converted("it", given, kind, "this")


class Unannotated:
    def __init__(self, flag=False, size=3, free=None, lost: "NoSuchName" = 2):  # noqa: F821
        pass


def test_without_a_declared_type_that_of_the_default_counts():
    def read(**given):
        return read_options("thing", Unannotated, given, options_of(Unannotated, leading=0))

    assert read(flag="no", size="5", free="no", lost="4") == {"flag": False, "size": 5, "free": "no", "lost": 4}
    with pytest.raises(regard.RegardError, match="flag: thing takes true or false"):
        read(flag="perhaps")


def test_an_object_is_passed_on_unchanged():
    own = regard.normalizers.Sparsemax()
    assert converted("normalize", own, str, "multihead") is own


def test_tuning_reads_options_of_a_model_by_their_type():
    config = complete({"task": "digits", "model": "encoder(tied=no)"})
    (choice,) = search_space.read("model.tied=yes|no", config)
    assert choice.values == {"yes": True, "no": False}
    assert search_space.own((choice,), config) == {"model.tied": "no"}
    with pytest.raises(regard.RegardError, match="tied: encoder takes true or false, got 'maybe'"):
        search_space.read("model.tied=yes|maybe", config)
