"""Promise 10: an error names the argument, what was given, what was expected, what to try."""

import math
import re
import warnings

import numpy as np
import pytest
import torch

import regard
from regard import biases, masks, scores

B, H, Q, K, D, V = 2, 3, 5, 7, 4, 6


def qkv(**changes):
    shapes = {"query": (B, H, Q, D), "key": (B, H, K, D), "value": (B, H, K, V), **changes}
    return [torch.randn(shapes[name]) for name in ("query", "key", "value")]


def attend(*tensors, **arguments):
    return lambda: regard.attend(*(tensors or qkv()), **arguments)


def integers(shape):
    return torch.ones(shape, dtype=torch.long)


def sparse(name, layout):
    """A call in which one of the three tensors is sparse or of mkldnn, after a right one of the same shapes."""

    def call():
        tensors = dict(zip(("query", "key", "value"), qkv(), strict=True))
        for _ in range(2):
            regard.attend(**tensors)
        return regard.attend(**{**tensors, name: getattr(tensors[name], layout)()})

    return call


def nested():
    with warnings.catch_warnings(action="ignore"):  # torch calls them a prototype
        return torch.nested.nested_tensor([torch.randn(3, D), torch.randn(4, D)])


# name: (call, the exception besides RegardError, every text that must stand in the message)
CASES = {
    # ranks
    "2-D inputs": (attend(*(torch.randn(5, 4) for _ in range(3))), ValueError, ["query", "(5, 4)", "(b,"]),
    "5-D inputs": (attend(*(torch.randn(1, 1, 1, 5, 4) for _ in range(3))), ValueError, ["query", "(1, 1, 1, 5, 4)"]),
    "mixed ranks": (attend(*qkv(key=(B, K, D))), ValueError, ["key", "(2, 7, 4)", "query"]),
    "value of another rank": (attend(*qkv(value=(B, K, V))), ValueError, ["value", "(2, 7, 6)"]),
    # heads
    "heads that do not divide": (
        attend(*qkv(key=(B, 2, K, D), value=(B, 2, K, V))),
        ValueError,
        ["3", "2", "multiple|divi", "head"],
    ),
    "more key heads than query heads": (
        attend(*qkv(key=(B, 6, K, D), value=(B, 6, K, V))),
        ValueError,
        ["3", "6", "head"],
    ),
    "key and value heads differ": (attend(*qkv(value=(B, 1, K, V))), ValueError, ["value", "key", "head"]),
    "one head is not broadcast in value": (attend(*qkv(key=(B, 1, K, D))), ValueError, ["value", "key", "head"]),
    # batch, length, dimension
    "batch of key differs": (attend(*qkv(key=(3, H, K, D))), ValueError, ["batch", "key", "3", "2"]),
    "batch of one is not broadcast": (
        attend(*qkv(key=(1, H, K, D), value=(1, H, K, V))),
        ValueError,
        ["batch", "key", "1", "2"],
    ),
    "batch of value differs": (attend(*qkv(value=(3, H, K, V))), ValueError, ["batch", "value", "3", "2"]),
    "lengths of key and value differ": (attend(*qkv(value=(B, H, K + 1, V))), ValueError, ["value", "key", "8", "7"]),
    "dimension of key differs": (attend(*qkv(key=(B, H, K, D + 1))), ValueError, ["key", "query", "5", "4"]),
    "dimension zero": (attend(*qkv(query=(B, H, Q, 0), key=(B, H, K, 0))), ValueError, ["query", "0"]),
    # masks
    "float mask": (attend(mask=torch.zeros(Q, K)), TypeError, ["mask", "float32", "bias="]),
    "float mask of zeros and ones": (attend(mask=torch.ones(Q, K)), TypeError, ["mask", "float32", "bias="]),
    "integer mask": (attend(mask=integers((Q, K))), TypeError, ["mask", "int64", "bias=", "bool"]),
    "uint8 mask": (attend(mask=torch.ones(Q, K, dtype=torch.uint8)), TypeError, ["mask", "uint8", "bool"]),
    "mask (b,k)": (attend(mask=torch.ones(B, K, dtype=torch.bool)), ValueError, ["mask", "(2, 7)", "masks.padding"]),
    "mask that does not broadcast": (
        attend(mask=torch.ones(Q, K + 1, dtype=torch.bool)),
        ValueError,
        ["mask", "(5, 8)", "(2, 3, 5, 7)"],
    ),
    "mask of five axes": (attend(mask=torch.ones(1, B, H, Q, K, dtype=torch.bool)), ValueError, ["mask"]),
    "mask transposed": (attend(mask=torch.ones(K, Q, dtype=torch.bool)), ValueError, ["mask", "(7, 5)"]),
    "mask of the wrong kind": (attend(mask="causal"), TypeError, ["mask", "causal"]),
    "score passed as mask": (attend(mask=scores.dot()), TypeError, ["mask"]),
    "dense mask that does not broadcast": (
        attend(mask=masks.dense(torch.ones(Q, K + 1, dtype=torch.bool))),
        ValueError,
        ["mask", "5, 8)"],
    ),
    "lengths of another batch": (attend(mask=masks.lengths(torch.tensor([1, 2, 3]))), ValueError, ["3", "2"]),
    "padding of another length": (
        attend(mask=masks.padding(torch.ones(B, K + 1, dtype=torch.bool))),
        ValueError,
        ["keep", "8", "7"],
    ),
    "query padding of another length": (
        attend(mask=masks.padding(torch.ones(B, K, dtype=torch.bool), torch.ones(B, K, dtype=torch.bool))),
        ValueError,
        ["query_keep", "7", "5"],
    ),
    "documents without key_ids": (attend(mask=masks.documents(integers((B, Q)))), ValueError, ["key_ids"]),
    "documents of another length": (
        attend(mask=masks.documents(integers((B, Q)), integers((B, K + 1)))),
        ValueError,
        ["key_ids", "8", "7"],
    ),
    "packed of another length": (attend(mask=masks.packed(torch.tensor([0, 3, 9]))), ValueError, ["9"]),
    "offsets of another batch": (attend(mask=masks.causal(offset=torch.tensor([1, 2, 3]))), ValueError, ["offset"]),
    # biases
    "bool bias": (attend(bias=torch.ones(Q, K, dtype=torch.bool)), TypeError, ["bias", "mask="]),
    "integer bias": (attend(bias=integers((Q, K))), TypeError, ["bias", "int64"]),
    "bias that does not broadcast": (attend(bias=torch.zeros(Q + 1, K)), ValueError, ["bias", "(6, 7)"]),
    "bias (b,k)": (attend(bias=torch.zeros(B, K)), ValueError, ["bias", "(2, 7)"]),
    "alibi of another number of heads": (attend(bias=biases.alibi(4)), ValueError, ["4", "3"]),
    "mask passed as bias": (attend(bias=masks.causal()), TypeError, ["bias", "mask="]),
    # sink
    "sink of another length": (attend(sink=torch.zeros(H + 1)), ValueError, ["sink", "4", "3"]),
    "sink of two axes": (attend(sink=torch.zeros(H, 1)), ValueError, ["sink", "(3, 1)"]),
    "sink as a number": (attend(sink=1.0), TypeError, ["sink"]),
    # numbers
    "dropout below zero": (attend(dropout=-0.1), ValueError, ["dropout", "-0.1"]),
    "dropout above one": (attend(dropout=1.5), ValueError, ["dropout", "1.5"]),
    "dropout nan": (attend(dropout=math.nan), ValueError, ["dropout", "nan"]),
    "dropout of another kind": (attend(dropout="0.1"), TypeError, ["dropout", "0.1"]),
    "dropout as an array": (attend(dropout=np.zeros(3)), TypeError, ["dropout", "ndarray"]),
    "dropout as a tensor": (attend(dropout=torch.zeros(2)), TypeError, ["dropout", "(2,)"]),
    "dropout as a number in a tensor": (attend(dropout=torch.tensor(0.5)), TypeError, ["dropout", "float32"]),
    "return_logsumexp as a tensor": (
        attend(return_logsumexp=torch.zeros(2)),
        TypeError,
        ["return_logsumexp", "True or False", "(2,)"],
    ),
    "scale nan": (attend(scale=math.nan), ValueError, ["scale", "nan"]),
    "scale inf": (attend(scale=math.inf), ValueError, ["scale", "inf"]),
    "scale below every number": (attend(scale=-math.inf), ValueError, ["scale", "-inf"]),
    "scale as a truth value": (attend(scale=True), TypeError, ["scale", "True"]),
    "scale as a text": (attend(scale="1"), TypeError, ["scale", "1"]),
    "scale as a tensor": (attend(scale=torch.tensor(0.5)), TypeError, ["scale", "Tensor|tensor"]),
    # names
    "unknown score": (
        attend(score="scaled_dto"),
        ValueError,
        ["score", "scaled_dto", "(?i)did you mean", "scaled-dot"],
    ),
    "unknown normalizer": (attend(normalize="sparsmax"), ValueError, ["normalize", "(?i)did you mean", "sparsemax"]),
    "unknown implementation": (attend(impl="tilde"), ValueError, ["impl", "tilde", "(?i)did you mean", "tiled"]),
    "far from any implementation": (attend(impl="xyzzy"), ValueError, ["impl", "xyzzy", "reference"]),
    # dtypes and kinds
    "mixed dtypes": (
        attend(torch.randn(B, H, Q, D), torch.randn(B, H, K, D).half(), torch.randn(B, H, K, V)),
        TypeError,
        ["key", "float16", "float32", "query|to\\("],
    ),
    "bias of another dtype": (attend(bias=torch.zeros(Q, K).double()), TypeError, ["bias", "float64", "float32"]),
    "integer query": (attend(*(integers((B, H, Q, D)) for _ in range(3))), TypeError, ["query", "int64"]),
    "complex query": (
        attend(*(torch.randn(B, H, Q, D, dtype=torch.complex64) for _ in range(3))),
        TypeError,
        ["query", "complex64"],
    ),
    # tensors whose numbers do not lie in memory one by one
    **{
        f"{layout} {name}": (sparse(name, layout), TypeError, [name, layout.removeprefix("to_"), ".to_dense()"])
        for name in ("query", "key", "value")
        for layout in ("to_sparse", "to_mkldnn")
    },
    "nested query": (attend(*(nested() for _ in range(3))), TypeError, ["query", "nested", "masks.lengths"]),
    "sparse sink": (attend(sink=torch.zeros(H).to_sparse()), TypeError, ["sink", ".to_dense()"]),
    "sparse bias": (attend(bias=torch.zeros(Q, K).to_sparse()), TypeError, ["dense", ".to_dense()"]),
    "sparse mask": (attend(mask=torch.ones(Q, K).bool().to_sparse()), TypeError, ["mask", ".to_dense()"]),
    "sparse padding": (lambda: masks.padding(torch.ones(B, K).bool().to_sparse()), TypeError, ["keep", ".to_dense()"]),
    "numpy query": (lambda: regard.attend(*(x.numpy() for x in qkv())), TypeError, ["query", "ndarray"]),
    "list query": (lambda: regard.attend([[1.0]], [[1.0]], [[1.0]]), TypeError, ["query", "list"]),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_refused_with_the_facts(name):
    call, kind, texts = CASES[name]
    with pytest.raises(regard.RegardError) as caught:
        call()
    assert isinstance(caught.value, kind)
    assert not isinstance(caught.value, regard.Unsupported)
    for text in texts:
        pattern = text if any(c in text for c in "|\\?") else re.escape(text)
        assert re.search(pattern, str(caught.value)), f"{text!r} does not stand in: {caught.value}"


@pytest.mark.parametrize("impl", ["auto", "reference", "tiled", "sdpa", "flex", "triton"])
@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"mask": torch.ones(B, K, dtype=torch.bool)}, "masks.padding"),
        ({"mask": torch.zeros(Q, K)}, "bias="),
        ({"dropout": 2.0}, "dropout"),
        ({"scale": math.nan}, "scale"),
        ({"bias": torch.zeros(Q, K).double()}, "float64"),
    ],
    ids=["mask (b,k)", "float mask", "dropout", "scale", "bias dtype"],
)
def test_bad_input_is_found_before_an_implementation_is_chosen(arguments, word, impl):
    with pytest.raises(regard.RegardError, match=word) as caught:
        regard.attend(*qkv(), **arguments, impl=impl)
    assert not isinstance(caught.value, regard.Unsupported)


@pytest.mark.parametrize(
    "arguments",
    [{"mask": torch.ones(B, K, dtype=torch.bool)}, {"scale": math.inf}, {"score": "dto"}, {"normalize": "max"}],
)
def test_weights_and_summarize_refuse_the_same_mistakes(arguments):
    query, key, value = qkv()
    texts = []
    for call in (regard.weights, regard.summarize, lambda q, k, **a: regard.explain(q, k, value, **a)):
        with pytest.raises(regard.RegardError) as caught:
            call(query, key, **arguments)
        texts.append(str(caught.value))
    with pytest.raises(regard.RegardError) as caught:
        regard.attend(query, key, value, **arguments)
    assert all(next(iter(arguments)) in text for text in [*texts, str(caught.value)])


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"rows": [0, Q]}, "rows"),
        ({"rows": [-Q - 1]}, "rows"),
        ({"rows": torch.zeros(1, 2, dtype=torch.long)}, "rows"),
        ({"rows": torch.tensor([0.5])}, "rows"),
        ({"rows": "first"}, "rows"),
        ({"rows": torch.tensor([1, 2]).to_sparse()}, "rows"),
        ({"heads": [H]}, "heads"),
        ({"heads": [0.5]}, "heads"),
    ],
)
def test_rows_and_heads_outside_the_tensor_are_refused(arguments, word):
    query, key, _ = qkv()
    with pytest.raises(regard.RegardError, match=word) as caught:
        regard.weights(query, key, **arguments)
    assert isinstance(caught.value, (ValueError, TypeError))


@pytest.mark.parametrize(
    "top", [-1, 1.5, "all", 2**62, 10**400, *(pytest.param(n * 10**5000, id=f"long {n}") for n in (1, -1))]
)
def test_a_wrong_top_is_refused(top):
    query, key, _ = qkv()
    with pytest.raises(regard.RegardError, match="top"):
        regard.summarize(query, key, top=top)


def test_unsupported_is_a_regard_error_and_a_not_implemented_error():
    assert issubclass(regard.Unsupported, regard.RegardError)
    assert issubclass(regard.Unsupported, NotImplementedError)


def test_an_unknown_keyword_is_a_type_error():
    with pytest.raises(TypeError):
        regard.attend(*qkv(), is_causal=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("impl", ["auto", "reference", "tiled", "sdpa"])
def test_mixed_devices_are_refused_by_name(impl):
    query, key, value = (x.cuda() for x in qkv())
    for arguments, word in (
        ({"mask": torch.ones(Q, K, dtype=torch.bool)}, "mask"),
        ({"bias": torch.zeros(Q, K)}, "bias"),
        ({"score": scores.additive(torch.randn(D))}, "score"),
        ({"sink": torch.zeros(H)}, "sink"),
    ):
        with pytest.raises(regard.RegardError, match=word) as caught:
            regard.attend(query, key, value, **arguments, impl=impl)
        assert "cuda" in str(caught.value)
        assert "cpu" in str(caught.value)
    with pytest.raises(regard.RegardError, match="key"):
        regard.attend(query, key.cpu(), value, impl=impl)


def test_tensors_on_the_meta_device_and_the_cpu_do_not_mix():
    query, key, value = qkv()
    with pytest.raises(regard.RegardError, match="key") as caught:
        regard.attend(query, key.to("meta"), value)
    assert "meta" in str(caught.value)
