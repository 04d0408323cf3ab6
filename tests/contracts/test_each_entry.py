"""Every entry alone, on every implementation that must run it: output, logsumexp and gradients."""

import pytest
import torch

from tests.contracts import entries
from tests.contracts.entries import FEW_QUERIES, MANY_QUERIES, SELF
from tests.contracts.harness import EVERYTHING, Case, check

SIZES = {"self": SELF, "few queries": FEW_QUERIES, "many queries": MANY_QUERIES}
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(params=EVERYTHING)
def impl(request):
    return request.param


@pytest.mark.parametrize("name", entries.SCORES)
@pytest.mark.parametrize("sizes", ["self", "many queries"])
def test_every_score_equals_its_definition(name, sizes, impl, device):
    check(Case(score=name, sizes=SIZES[sizes]), impl, device)


@pytest.mark.parametrize("name", entries.SCORES)
def test_every_score_takes_a_scale(name, impl, device):
    check(Case(score=name, scale=0.37, sizes=FEW_QUERIES), impl, device)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", entries.MASKS)
def test_every_mask_equals_its_predicate(name, sizes, impl, device):
    if entries.MASKS[name].square and sizes != "self":
        sizes = "self"
    check(Case(mask=name, sizes=SIZES[sizes]), impl, device)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", entries.BIASES)
def test_every_bias_equals_its_definition(name, sizes, impl, device):
    check(Case(bias=name, sizes=SIZES[sizes]), impl, device)


@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize("name", [*entries.NORMALIZERS])
def test_every_normalizer_equals_its_definition(name, sink, impl, device):
    check(Case(normalize=name, sink=sink, mask="causal", sizes=MANY_QUERIES), impl, device)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", entries.CUSTOM_NORMALIZERS)
def test_a_normalizer_of_the_user_runs_everywhere(name, sizes, impl, device):
    check(Case(normalize=name, mask="window both", sizes=SIZES[sizes]), impl, device)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("normalize", entries.NORMALIZERS)
def test_every_dtype_equals_the_reference(dtype, normalize, impl, device):
    check(Case(dtype=dtype, normalize=normalize, mask="causal"), impl, device)


@pytest.mark.parametrize("groups", [(4, 4), (4, 1), (6, 2), (6, 3), (1, 1)])
def test_grouped_heads_are_shared_in_order(groups, impl, device):
    sizes = entries.Sizes(h=groups[0], g=groups[1])
    check(Case(sizes=sizes, mask="raw h q k", score="additive per head", bias="relative", sink=True), impl, device)


@pytest.mark.parametrize("d", [1, 2, 3, 64, 65, 128, 257])
@pytest.mark.parametrize("v", [1, 64, 67])
def test_any_pair_of_dimensions_works(d, v, impl, device):
    check(Case(sizes=entries.Sizes(b=2, h=2, g=1, d=d, v=v), mask="causal"), impl, device)


@pytest.mark.parametrize("k", [1, 2, 7, 15, 16, 17, 31, 64, 131])
def test_any_number_of_keys_works(k, impl, device):
    check(Case(sizes=entries.Sizes(b=2, h=2, g=2, q=5, k=k), mask="causal", bias="alibi"), impl, device)
