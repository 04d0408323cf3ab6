"""Whatever surrounds a call must not change it: poisoned scratch memory, threads, modes, subclasses, transforms."""

import subprocess
import sys

import pytest
import torch

import regard
from regard import masks, scores
from tests.contracts.harness import EVERYTHING, by_regard
from tests.contracts.pairs import CASES


@pytest.fixture
def poisoned_scratch():
    """torch fills every uninitialised tensor with NaN, or the largest integer."""
    mode = torch.get_deterministic_debug_mode()
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    assert torch.empty(3).isnan().all()
    yield
    torch.set_deterministic_debug_mode(mode)


@pytest.mark.filterwarnings("ignore:.*deterministic.*")
@pytest.mark.parametrize("impl", EVERYTHING)
@pytest.mark.parametrize("part", range(8))
def test_no_result_comes_from_uninitialised_memory(part, impl, device, poisoned_scratch):
    """A share of the pairs; that they are right is held elsewhere, so that NaN shows here."""
    for case, _ in CASES[part * 3 :: 61]:
        for name, x in by_regard(case, impl, device).items():
            assert not x.isnan().any(), f"{name} of {case}"


@pytest.mark.filterwarnings("ignore:.*deterministic.*")
def test_sdpa_leaves_nothing_uninitialised(device, poisoned_scratch):
    lengths = masks.lengths(torch.tensor([0, 17], device=device))
    for mask in (None, masks.causal(), lengths):
        qkv = [torch.randn(2, 3, n, m, device=device, requires_grad=True) for n, m in ((23, 5), (17, 5), (17, 7))]
        out = regard.attend(*qkv, mask=mask, impl="sdpa")
        for x in (out, *torch.autograd.grad(out.sum(), qkv)):
            assert not x.isnan().any()


@pytest.mark.parametrize("impl", [*EVERYTHING, "sdpa"])
def test_one_thread_and_two_agree(impl):
    qkv = [torch.randn(2, 3, 131, 16, requires_grad=True) for _ in range(3)]
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            out = regard.attend(*qkv, mask=masks.causal(), impl=impl)
            results.append([out, *torch.autograd.grad(out.sum(), qkv)])
    finally:
        torch.set_num_threads(before)
    for x, y in zip(*results, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("impl", EVERYTHING)
def test_the_default_dtype_of_torch_does_not_matter(impl, device):
    qkv = [torch.randn(2, 3, 19, 5, device=device) for _ in range(3)]
    arguments = {"mask": masks.window(3), "bias": regard.biases.alibi(3), "impl": impl}
    expected = regard.attend(*qkv, **arguments)
    torch.set_default_dtype(torch.float64)
    try:
        found = regard.attend(*qkv, **arguments)
    finally:
        torch.set_default_dtype(torch.float32)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("impl", EVERYTHING)
def test_inference_tensors_are_accepted(impl, device):
    with torch.inference_mode():
        qkv = [torch.randn(2, 3, 19, 5, device=device) for _ in range(3)]
        mask = masks.lengths(torch.tensor([4, 19], device=device)) & masks.causal()
        inside = regard.attend(*qkv, mask=mask, impl=impl)
    outside = regard.attend(*(x.clone() for x in qkv), mask=mask, impl=impl)
    torch.testing.assert_close(inside, outside)


class Tagged(torch.Tensor):
    """A subclass that only carries a name."""


@pytest.mark.parametrize("impl", EVERYTHING)
def test_a_subclass_of_tensor_and_a_parameter_are_tensors(impl, device):
    query, key, value = (torch.randn(2, 3, 19, 5, device=device) for _ in range(3))
    expected = regard.attend(query, key, value, impl=impl)
    tagged = regard.attend(*(x.as_subclass(Tagged) for x in (query, key, value)), impl=impl)
    assert torch.equal(tagged.as_subclass(torch.Tensor), expected)
    parameter = torch.nn.Parameter(query)
    out = regard.attend(parameter, key, value, impl=impl)
    assert torch.equal(out, expected)
    out.sum().backward()
    assert parameter.grad is not None


@pytest.mark.filterwarnings("ignore:.*batching rule.*")
@pytest.mark.parametrize("impl", EVERYTHING)
def test_vmap_is_right_or_refused(impl, device):
    query, key, value = (torch.randn(4, 2, 3, 19, 5, device=device) for _ in range(3))
    expected = torch.stack(
        [regard.attend(*x, mask=masks.causal(), impl="reference") for x in zip(query, key, value, strict=True)]
    )
    try:
        found = torch.func.vmap(lambda *x: regard.attend(*x, mask=masks.causal(), impl=impl))(query, key, value)
    except (RuntimeError, NotImplementedError) as refusal:
        assert impl != "reference", refusal
        return
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("impl", EVERYTHING)
def test_forward_derivatives_are_right_or_refused(impl, device):
    query, key, value, along = (torch.randn(2, 3, 19, 5, dtype=torch.float64, device=device) for _ in range(4))

    def call(x, name):
        return regard.attend(x, key, value, score=scores.softcap(2.0), mask=masks.causal(), impl=name)

    step = 1e-6
    expected = (call(query + step * along, "reference") - call(query - step * along, "reference")) / (2 * step)
    try:
        _, found = torch.func.jvp(lambda x: call(x, impl), (query,), (along,))
    except (RuntimeError, NotImplementedError) as refusal:
        assert impl != "reference", refusal
        return
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_a_call_inside_another_autocast_region_is_not_changed_by_it(device):
    """float64 is not cast by autocast, as with torch's own attention."""
    qkv = [torch.randn(2, 3, 19, 5, device=device) for _ in range(3)]
    with torch.autocast(device, dtype=torch.bfloat16), torch.autocast(device, enabled=False):
        found = regard.attend(*qkv)
    assert found.dtype == torch.float32
    assert torch.equal(found, regard.attend(*qkv))


@pytest.mark.parametrize("impl", ["tiled", "sdpa"])
def test_backward_may_be_called_where_autocast_is_on(device, impl):
    """`reference` is left to autograd, which under autocast also rounds in the backward pass."""
    found = []
    for inside in (False, True):
        torch.manual_seed(0)
        qkv = [torch.randn(2, 3, 19, 16, device=device, requires_grad=True) for _ in range(3)]
        region = torch.autocast(device, dtype=torch.bfloat16)
        with region:
            out = regard.attend(*qkv, impl=impl).float().square().sum()
            if inside:
                out.backward()
        if not inside:
            out.backward()
        found.append([tensor.grad for tensor in qkv])
    for outside, within in zip(*found, strict=True):
        assert torch.equal(outside, within)


AFTER_PATCHING = """
import torch
import torch.nn.functional as F
import regard
from regard import masks

original, calls = F.scaled_dot_product_attention, []

def patched(query, key, value, **options):
    calls.append(options)
    assert len(calls) <= 8, "regard calls what has replaced torch's function"
    return regard.attend(query, key, value, **options)

F.scaled_dot_product_attention = patched
for length in (3, 64):
    rows = [torch.randn(1, 2, length, 16) for _ in range(3)]
    for mask in (None, masks.causal(), masks.window(9, 0), masks.prefix(2)):
        expected = regard.attend(*rows, mask=mask, impl="reference")
        for _ in range(3):
            torch.testing.assert_close(regard.attend(*rows, mask=mask), expected)
    for _ in range(4):
        torch.testing.assert_close(F.scaled_dot_product_attention(*rows), original(*rows))
assert len(calls) == 8
"""


def test_torch_may_be_patched_with_regard_or_another_function_afterwards():
    """In a process of its own, where nothing of ours is imported before the patch but by `import regard`."""
    done = subprocess.run([sys.executable, "-c", AFTER_PATCHING], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
