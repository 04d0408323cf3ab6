"""The arguments of `attend` stand in one place; every verb shows, takes and refuses the same ones."""

import inspect
from typing import get_type_hints

import pytest
import torch

import regard
from regard.formula.call import OPTIONS, SCORING, Call, Options, Scoring

TENSORS = ["query", "key", "value"]
WEIGHING = ["score", "mask", "bias", "normalize", "scale"]
SHOWN = {  # as the public surface fixes them
    regard.attend: [*TENSORS, *WEIGHING, "dropout", "sink", "return_logsumexp", "impl"],
    regard.explain: [*TENSORS, *WEIGHING, "dropout", "sink", "return_logsumexp", "impl"],
    regard.weights: [*TENSORS[:2], *WEIGHING, "sink", "rows", "heads"],
    regard.summarize: [*TENSORS[:2], *WEIGHING, "sink", "top"],
}


@pytest.mark.parametrize("verb", SHOWN, ids=lambda verb: verb.__name__)
def test_help_shows_every_option_by_name_with_its_default(verb):
    parameters = inspect.signature(verb).parameters
    assert list(parameters) == SHOWN[verb]
    for name, parameter in parameters.items():
        if name in Call._field_defaults:
            assert parameter.kind is parameter.KEYWORD_ONLY
            assert parameter.default == Call._field_defaults[name]
            assert parameter.annotation == get_type_hints(Call)[name]


def test_type_checkers_are_told_the_types_of_the_call():
    of_call = get_type_hints(Call)
    for options, names in ((Scoring, SCORING), (Options, OPTIONS)):
        hints = get_type_hints(options)
        assert set(hints) == set(names) - {"return_logsumexp"}  # which the overloads of `attend` name
        assert hints == {name: of_call[name] for name in hints}


@pytest.mark.parametrize("verb", SHOWN, ids=lambda verb: verb.__name__)
def test_an_unknown_option_is_refused_with_the_known_ones(verb):
    tensors = [torch.randn(1, 2, 3, 5)] * len(set(SHOWN[verb]) & set(TENSORS))
    with pytest.raises(regard.RegardError, match=rf"option of {verb.__name__}.*'maks'.*mean 'mask'") as caught:
        verb(*tensors, maks=None)
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize("verb", [regard.weights, regard.summarize], ids=lambda verb: verb.__name__)
@pytest.mark.parametrize("option", sorted(set(OPTIONS) - set(SCORING)))
def test_weights_have_no_options_of_the_output(verb, option):
    query = torch.randn(1, 2, 3, 5)
    with pytest.raises(TypeError, match=f"'{option}'"):
        verb(query, query, **{option: Call._field_defaults[option]})


def test_a_call_cannot_be_changed():
    call = Call(*[torch.zeros(1, 1, 2)] * 3)
    assert call._replace(dropout=0.1).dropout == 0.1 and call.dropout == 0
    with pytest.raises(AttributeError):
        call.dropout = 0.5


def test_options_given_with_their_defaults_change_nothing():
    query, key, value = torch.randn(3, 2, 3, 17, 5).unbind()
    assert torch.equal(regard.attend(query, key, value, **Call._field_defaults), regard.attend(query, key, value))
