"""The registry of mechanisms, and building layers by name."""

import subprocess
import sys

import pytest
import torch

import regard.nn
from regard import masks
from tests.nn.contracts.layers import ALL, CAUSAL, HOLES, KEEP_ONLY, PLAIN, SPECIFIED, B, Case, K, Q

by_name = pytest.mark.parametrize("case", PLAIN, ids=str)


def test_every_mechanism_of_the_specification_is_listed():
    assert set(SPECIFIED) <= set(regard.nn.names()), sorted(set(SPECIFIED) - set(regard.nn.names()))


def test_soft_is_another_name_of_global():
    assert regard.nn.entry("soft") is regard.nn.entry("global")
    assert type(regard.nn.build("soft", dim=6)) is type(regard.nn.build("global", dim=6))


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match="multihead") as caught:
        regard.nn.build("multi-head", dim=6)
    assert isinstance(caught.value, regard.RegardError)
    assert all(name in str(caught.value) for name in regard.nn.names())


@by_name
def test_an_entry_says_what_it_costs_and_whether_it_can_be_causal(case):
    entry = regard.nn.entry(case.name)
    assert entry.name == case.name
    assert entry.causal in ("yes", "no", "option")
    assert "n" in entry.time and entry.memory
    assert "²" not in entry.memory, "memory is linear in length"


@by_name
def test_every_mechanism_takes_the_four_common_options(case):
    layer = case.build(dropout=0.1)
    assert (layer.dim, layer.dropout) == (case.dim, 0.1)
    assert layer.num_heads >= 1
    plain = {key: x for key, x in regard.nn.entry(case.name).needs.items() if key != "num_heads"}
    assert regard.nn.build(case.name, dim=6, num_heads=1, dropout=0.0, source_dim=6, **plain) is not None


@by_name
def test_a_mechanism_that_cannot_be_causal_has_no_such_option(case):
    kind = regard.nn.entry(case.name).causal
    if kind == "option":
        assert case.build(causal=True) is not None
    else:  # always causal, or never
        with pytest.raises(ValueError, match="causal"):
            case.build(causal=True)


@by_name
@pytest.mark.parametrize(
    ("option", "wrong"),
    [("dim", 0), ("dim", 2.5), ("num_heads", 0), ("source_dim", -1), ("dropout", 1.5), ("dropout", "much")],
)
def test_a_common_option_out_of_range_is_named(case, option, wrong):
    with pytest.raises((ValueError, TypeError), match=option) as caught:
        case.build(**{option: wrong})
    assert isinstance(caught.value, regard.RegardError)


@by_name
def test_errors_name_the_argument(case):
    layer = case.build(cross=True)
    query, source = case.inputs(cross=True)
    wrong = {
        "query": [query[0], query[..., :-1], query.long(), "text", query[None]],
        "source": [source[0], source[..., :-1], source.long(), source[:2], [1.0]],
        "mask": [
            torch.zeros(B, Q, K),  # a float tensor is not a mask
            torch.ones(B, 1, K, dtype=torch.int64),
            torch.ones(B, 1, K + 1, dtype=torch.bool),
            masks.padding(torch.ones(B, K + 1, dtype=torch.bool)),
            masks.lengths(torch.tensor([1, 2])),
            "causal",
        ],
        "state": ["none", torch.zeros(3)],
    }
    for argument, values in wrong.items():
        for value in values:
            given = {"query": query, "source": source, argument: value}
            with pytest.raises((ValueError, TypeError), match=argument) as caught:
                layer(given.pop("query"), given.pop("source"), **given)
            assert isinstance(caught.value, regard.RegardError), f"{argument}={value!r}"


@by_name
def test_a_layer_with_a_source_dim_requires_a_source(case):
    with pytest.raises(ValueError, match="source"):
        case.build(cross=True)(case.inputs()[0])


def test_a_two_dimensional_mask_that_fits_only_as_padding_is_explained():
    case = Case("multihead")
    with pytest.raises(ValueError, match=r"masks\.padding"):
        case.build(cross=True)(*case.inputs(cross=True), mask=HOLES[:, :K])


@pytest.mark.parametrize("name", sorted(KEEP_ONLY))
def test_mechanisms_that_keep_a_summary_refuse_masks_that_depend_on_the_query(name):
    case = Case(name)
    layer, (query, source) = case.build(cross=True), case.inputs(cross=True)
    dependent = torch.ones(Q, K, dtype=torch.bool).tril()
    for mask in (masks.causal(), masks.window(2), dependent, dependent.expand(B, Q, K), masks.dense(dependent)):
        with pytest.raises(ValueError, match=r"mask|keep|query") as caught:
            layer(query, source, mask=mask)
        assert isinstance(caught.value, regard.RegardError)
    for mask in (masks.full(), masks.prefix(3), masks.prefix(6) & masks.padding(HOLES), HOLES[:, None, None]):
        assert layer(query, source, mask=mask).shape == query.shape


@pytest.mark.parametrize("window", [2, 4, 64])
@pytest.mark.parametrize("name", ["local", "local-m", "local-p", "local-layer"])
def test_an_even_two_sided_window_is_refused_with_both_neighbours(name, window):
    with pytest.raises(ValueError, match=f"window: .*{window - 1} or {window + 1}"):
        regard.nn.build(name, dim=6, window=window)


@pytest.mark.slow
def test_importing_regard_is_enough_to_build_a_layer():
    code = "import regard; print(regard.nn.build('local', dim=256, num_heads=8, window=65).dim)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "256", done.stderr[-500:]


def test_the_contracts_cover_every_entry():
    assert {case.name for case in ALL} == set(regard.nn.names())
    can = {name for name in regard.nn.names() if regard.nn.entry(name).causal != "no"}
    assert {case.name for case in CAUSAL} == can
