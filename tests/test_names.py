"""Names of the public surface, and errors that say what to write in place of a wrong name or value."""

import ast
import inspect

import pytest
import torch

import regard
from regard import biases, masks, normalizers, scores
from regard.registry import calls_of

X = torch.randn(1, 2, 5, 4)

# case: (arguments, text of the error)
WRONG = {
    "a misspelt score with weights": ({"score": "addtive"}, "Did you mean scores.additive(weight)?"),
    "a score with weights": ({"score": "additive"}, "Did you mean scores.additive(weight)?"),
    "a score with several": (
        {"score": "transformer-xl"},
        "Did you mean scores.transformer_xl(content_bias, position_bias, table)?",
    ),
    "a score with a number": ({"score": "soft-cap"}, "Did you mean scores.softcap(cap)?"),
    "a misspelt score": ({"score": "scaled_dto"}, "Did you mean 'scaled-dot'?"),
    "a score that does not exist": ({"score": "xyz"}, "scores.general(weight)"),
    "a score that was not called": ({"score": scores.additive}, "Did you mean scores.additive(weight)?"),
    "a mask": ({"mask": "causal"}, "Did you mean masks.causal()?"),
    "a misspelt mask": ({"mask": "casual"}, "Did you mean masks.causal()?"),
    "a mask with a number": ({"mask": "window"}, "Did you mean masks.window(before)?"),
    "a mask with a dash": ({"mask": "global-tokens"}, "Did you mean masks.global_tokens(index)?"),
    "a mask that was not called": ({"mask": masks.causal}, "Did you mean masks.causal()?"),
    "a mask that does not exist": ({"mask": "xyz"}, "masks.padding(keep)"),
    "a bias": ({"bias": "alibi"}, "Did you mean biases.alibi(num_heads)?"),
    "a bias that was not called": ({"bias": biases.alibi}, "Did you mean biases.alibi(num_heads)?"),
    "a bias that is a number": ({"bias": 2.0}, "biases.relative(table)"),
    "a mask as a bias": ({"bias": masks.causal()}, "goes to mask="),
    "a bias as a mask": ({"mask": biases.alibi(2)}, "go to bias="),
    "a misspelt normaliser": ({"normalize": "sofmax"}, "Did you mean 'softmax'?"),
    "a normaliser that was not called": ({"normalize": normalizers.softmax}, "Did you mean normalizers.softmax()?"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("verb", ["attend", "explain", "weights", "summarize"])
def test_the_error_says_what_to_write(name, verb):
    given, words = WRONG[name]
    inputs = (X, X, X) if verb in ("attend", "explain") else (X, X)
    with pytest.raises((ValueError, TypeError)) as caught:
        getattr(regard, verb)(*inputs, **given)
    assert isinstance(caught.value, regard.RegardError)
    assert words in str(caught.value) and str(caught.value).startswith(next(iter(given)))


def test_the_error_of_a_layer_says_what_to_write_for_a_mask():
    with pytest.raises(regard.RegardError, match=r"mask: .* Did you mean masks\.causal\(\)\?"):
        regard.nn.build("multihead", dim=4)(X[:, 0], mask="causal")


@pytest.mark.parametrize("room", ["masks", "scores", "biases", "normalizers"])
def test_every_constructor_is_listed_with_its_required_arguments(room):
    calls = calls_of(f"regard.{room}")
    public = [name for name in getattr(regard, room).__all__ if name.islower() and name != "named"]
    assert list(calls) == public and len(calls) >= 5
    for name, call in calls.items():
        assert call.startswith(f"{room}.{name}(")


def test_every_public_name_can_be_listed_and_reached():
    assert len(set(regard.__all__)) == len(regard.__all__)
    assert set(regard.__all__) <= set(dir(regard))
    for name in regard.__all__:
        assert getattr(regard, name) is not None


def test_lazy_names_are_public_and_declared_for_type_checkers():
    declared = set()
    for node in ast.walk(ast.parse(inspect.getsource(regard))):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            imports = [one for one in node.body if isinstance(one, ast.ImportFrom)]
            declared |= {alias.asname or alias.name for one in imports for alias in one.names}
    assert declared == set(regard.__all__)


def test_an_attribute_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'regard' has no attribute 'attned'"):
        regard.attned  # noqa: B018


def test_errors_are_exported_and_share_one_root():
    for name, error in vars(regard.errors).items():
        if isinstance(error, type) and issubclass(error, Exception):
            assert getattr(regard, name) is error and issubclass(error, regard.RegardError)
