"""`explain` says which implementation runs, why, and why each other one does not."""

import subprocess
import sys

import pytest
import torch

import regard
from regard import biases, masks, scores

NAMES = {"reference", "tiled", "sdpa", "flex", "triton"}
REQUESTS = {
    "plain": {},
    "causal": {"mask": masks.causal()},
    "window": {"mask": masks.window(3)},
    "additive": {"score": scores.additive(torch.ones(8))},
    "sparsemax": {"normalize": "sparsemax"},
    "alibi": {"bias": biases.alibi(3)},
    "dropout": {"dropout": 0.1},
    "logsumexp": {"return_logsumexp": True},
    "sink": {"sink": torch.zeros(3)},
    "raw mask": {"mask": torch.ones(19, 19, dtype=torch.bool)},
}


def draw(k=19, grad=False):
    return [torch.randn(2, 3, n, 8, requires_grad=grad) for n in (19, k, k)]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", REQUESTS)
def test_the_plan_names_its_choice_and_every_other(name, grad):
    plan = regard.explain(*draw(grad=grad), **REQUESTS[name])
    assert plan.impl in NAMES
    assert isinstance(plan.reason, str)
    assert len(plan.reason) > 10
    assert set(plan.rejected) == NAMES - {plan.impl}
    assert all(isinstance(why, str) and len(why) > 10 for why in plan.rejected.values())


@pytest.mark.parametrize("name", REQUESTS)
def test_auto_does_what_the_plan_says(name):
    qkv = draw()
    plan = regard.explain(*qkv, **REQUESTS[name])
    torch.manual_seed(1)
    found = regard.attend(*qkv, **REQUESTS[name])
    torch.manual_seed(1)
    named = regard.attend(*qkv, **REQUESTS[name], impl=plan.impl)
    for x, y in zip(found, named, strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("grad", [False, True])
def test_whatever_refuses_is_among_the_rejected_with_its_reason(name, grad):
    qkv = draw(grad=grad)
    plan = regard.explain(*qkv, **REQUESTS[name])
    for impl in NAMES - {"flex"}:  # flex would compile
        try:
            regard.attend(*qkv, **REQUESTS[name], impl=impl)
        except regard.Unsupported as refusal:
            assert plan.rejected[impl] in str(refusal)


@pytest.mark.parametrize("impl", ["reference", "tiled", "sdpa"])
def test_a_named_implementation_is_the_plan(impl):
    plan = regard.explain(*draw(), impl=impl)
    assert plan.impl == impl
    assert impl in plan.reason or "asked" in plan.reason or "named" in plan.reason


def test_a_plan_is_readable_when_printed():
    plan = regard.explain(*draw(), mask=masks.causal() & masks.window(2))
    text = str(plan)
    assert plan.impl in text
    assert plan.reason in text
    for name, why in plan.rejected.items():
        assert name in text
        assert why in text
    assert "<" not in text, "no object addresses"


def test_the_plan_changes_with_the_request_not_with_the_numbers():
    short, long = draw(k=7), draw(k=19)
    assert regard.explain(*short).impl != "sdpa"
    assert "16" in regard.explain(*short).rejected["sdpa"]
    assert regard.explain(*long).impl == "sdpa"
    assert regard.explain(*long).impl == regard.explain(*(x * 100 for x in long)).impl


def test_flex_and_triton_are_never_chosen_on_the_cpu():
    for arguments in REQUESTS.values():
        assert regard.explain(*draw(), **arguments).impl not in ("flex", "triton")


def test_the_reference_is_not_chosen_where_a_linear_one_runs():
    for name, arguments in REQUESTS.items():
        assert regard.explain(*draw(), **arguments).impl in ("sdpa", "tiled"), name


def test_explain_runs_nothing_and_leaves_the_random_state():
    qkv = [torch.full((2, 3, 19, 8), float("nan")) for _ in range(3)]
    before = torch.get_rng_state()
    regard.explain(*qkv, dropout=0.5)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.slow
def test_without_triton_everything_else_works():
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch, regard, regard.nn\n"
        "q = torch.randn(1, 2, 20, 4)\n"
        "assert 'not installed' in regard.explain(q, q, q).rejected['triton']\n"
        "regard.attend(q, q, q, mask=regard.masks.window(3)); regard.summarize(q, q); regard.weights(q, q)\n"
        "regard.nn.build('ntm', dim=8)(torch.randn(2, 5, 8))\n"
        "try: regard.attend(q, q, q, impl='triton')\n"
        "except regard.Unsupported as problem: print(problem)\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Triton is not installed" in found.stdout
