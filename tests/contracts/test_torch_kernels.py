"""`sdpa`, `flex` and `triton`: torch's own kernels run what they say they run, or refuse with a reason."""

import pytest
import torch

import regard
from regard import biases, masks
from tests.contracts import entries
from tests.contracts.entries import FEW_QUERIES, MANY_QUERIES, SELF, Sizes
from tests.contracts.harness import Case, by_regard, check
from tests.contracts.pairs import CASES

CPU_SDPA_MUST_RUN = {
    "nothing else": Case(),
    "fewer queries": Case(sizes=FEW_QUERIES),
    "more queries": Case(sizes=MANY_QUERIES),
    "dot": Case(score="dot"),
    "a scale": Case(scale=0.21),
    "one key head": Case(sizes=Sizes(h=4, g=1)),
    "equal heads": Case(sizes=Sizes(h=3, g=3)),
    "value wider than key": Case(sizes=Sizes(d=5, v=29)),
    "key wider than value": Case(sizes=Sizes(d=29, v=5)),
    "full": Case(mask="full"),
    "causal": Case(mask="causal"),
    "padding": Case(mask="padding"),
    "lengths": Case(mask="lengths"),
    "bfloat16": Case(dtype=torch.bfloat16, mask="causal"),
    "float64": Case(dtype=torch.float64, mask="padding"),
    "131 keys": Case(sizes=Sizes(q=97, k=131), mask="lengths"),
    "causal with more queries": Case(mask="causal", sizes=MANY_QUERIES),
}


@pytest.mark.parametrize("name", CPU_SDPA_MUST_RUN)
def test_sdpa_runs_what_the_issue_says_it_can(name, device):
    check(CPU_SDPA_MUST_RUN[name], "sdpa", device, with_lse=False)


def runs(case, impl, device, **options):
    try:
        check(case, impl, device, **options)
    except regard.Unsupported as refusal:
        assert isinstance(refusal, NotImplementedError)
        assert impl in str(refusal)
        assert len(str(refusal)) > 20, "a refusal says why"
        return False
    return True


@pytest.mark.parametrize("kind", ["mask", "bias", "score", "normalize"])
def test_sdpa_is_right_or_says_why_not_for_every_entry_alone(kind, device):
    names = {
        "mask": entries.MASKS,
        "bias": entries.BIASES,
        "score": entries.SCORES,
        "normalize": {**entries.NORMALIZERS, **entries.CUSTOM_NORMALIZERS},
    }[kind]
    ran = [name for name in names if runs(Case(**{kind: name}), "sdpa", device, with_lse=False)]
    if device == "cpu":  # a GPU's float32 kernels are refused altogether
        assert len(ran) >= {"mask": 5, "bias": 1, "score": 3, "normalize": 1}[kind], ran


def test_sdpa_takes_a_bias_that_needs_no_gradient(device):
    for name in ("raw q k", "raw b 1 q k", "dense b h q k"):
        check(Case(bias=name), "sdpa", device, with_lse=False, bias_gradient=False)


def test_sdpa_is_right_or_says_why_not_in_pairs(device):
    distinct = list(dict.fromkeys(case for case, _ in CASES))
    for case in distinct[::4]:
        runs(case, "sdpa", device, with_lse=False, bias_gradient=False)


def test_sdpa_on_the_cpu_refuses_where_torch_is_wrong_or_quadratic():
    cases = {
        "16": lambda: by_regard(Case(sizes=Sizes(q=15, k=15)), "sdpa", "cpu", with_lse=False),
        "dropout": lambda: regard.attend(*(torch.randn(2, 3, 17, 5),) * 3, dropout=0.5, impl="sdpa"),
        "gradient": lambda: by_regard(Case(bias="raw q k"), "sdpa", "cpu", with_lse=False),
        "mask": lambda: by_regard(Case(mask="window both"), "sdpa", "cpu", with_lse=False),
        "additive": lambda: by_regard(Case(score="additive"), "sdpa", "cpu", with_lse=False),
        "sparsemax": lambda: by_regard(Case(normalize="sparsemax"), "sdpa", "cpu", with_lse=False),
    }
    for word, call in cases.items():
        with pytest.raises(regard.Unsupported, match=word) as caught:
            call()
        assert isinstance(caught.value, NotImplementedError)


def test_three_dimensional_inputs_run_on_sdpa(device):
    query, key, value = (torch.randn(3, 19, n, device=device) for n in (5, 5, 7))
    found = regard.attend(query, key, value, mask=masks.causal(), impl="sdpa")
    expected = regard.attend(query[:, None], key[:, None], value[:, None], mask=masks.causal(), impl="reference")
    assert found.shape == (3, 19, 7)
    torch.testing.assert_close(found, expected[:, 0])


def test_triton_says_why_it_cannot_run_on_the_cpu():
    query = torch.randn(2, 3, 17, 16)
    with pytest.raises(regard.Unsupported, match=r"(?i)triton"):
        regard.attend(query, query, query, impl="triton")


def test_a_named_implementation_never_falls_back():
    query = torch.randn(2, 3, 17, 5)
    bias = biases.alibi(3)
    for impl in ("sdpa", "flex", "triton"):
        with pytest.raises(regard.Unsupported, match=impl):
            regard.attend(query, query, query, normalize="entmax15", bias=bias, impl=impl)


def test_sizes_of_the_cases_are_distinct():
    for sizes in (SELF, FEW_QUERIES, MANY_QUERIES):
        letters = [sizes.b, sizes.h, sizes.g, sizes.q, sizes.d, sizes.v]
        assert len(set(letters)) == len(letters)
