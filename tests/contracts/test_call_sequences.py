"""Many calls in one process, in random order: none depends on an earlier one, whatever was cached of it.

Each mask meets several numbers of keys and of queries, with and without gradients, so that plans, prepared masks and
the functions of repeated calls are found again for calls that are not quite like the first. One sequence runs always.
"""

from dataclasses import replace
from random import Random

import pytest
import torch

import regard
from tests import oracle
from tests.contracts import entries
from tests.contracts.harness import predicate_mask

SIZES = entries.Sizes(d=5, v=5)
KEYS = (13, 17, 23, 37)
CLOSE = {torch.float32: 2e-5, torch.float64: 1e-11}
OF_EACH_MASK = 8


def drawn_calls(random):
    """Names of masks with sizes, dtypes and whether a gradient is wanted, in random order."""
    calls = []
    for name, entry in entries.MASKS.items():
        for _ in range(OF_EACH_MASK):
            keys = random.choice(KEYS)
            queries = keys if entry.square else random.choice([1, 1, 1, 2, 19, keys])
            dtype = random.choice([torch.float32, torch.float32, torch.float64])
            calls.append((name, replace(SIZES, q=queries, k=keys), dtype, random.random() < 0.3))
    random.shuffle(calls)
    return calls


def answers(attend, tensors, grad, trains):
    """The output and, if wanted, the gradients of query, key and value."""
    tensors = [part.requires_grad_(trains) for part in tensors]
    output = attend(*tensors)
    return [output.detach(), *(torch.autograd.grad(output, tensors, grad) if trains else ())]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 60))])
def test_no_call_depends_on_those_before_it(seed, device):
    random, generator = Random(seed), torch.Generator().manual_seed(seed)
    before = []
    for name, s, dtype, trains in drawn_calls(random):
        shapes = ((s.b, s.h, s.q, s.d), (s.b, s.g, s.k, s.d), (s.b, s.g, s.k, s.v), (s.b, s.h, s.q, s.v))
        *rows, grad = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
        mask, seen = entries.MASKS[name].build(s, device)[0], predicate_mask(name, s)
        before.append((name, s.q, s.k, dtype, trains))
        found = answers(
            lambda *tensors, mask=mask: regard.attend(*tensors, mask=mask),
            [part.to(device) for part in rows],
            grad.to(device),
            trains,
        )
        exact = answers(
            lambda *tensors, seen=seen: oracle.attend(*tensors, seen=seen)[0],
            [part.double() for part in rows],
            grad.double(),
            trains,
        )
        for one, other in zip(found, exact, strict=True):
            error = (one.double().cpu() - other).abs().max() / other.abs().max().clamp(min=1)
            assert error <= CLOSE[dtype], f"the last of {before[-4:]}, error {error:.1e}"
