"""The custom operators behind `tiled`, checked by torch's own opcheck: schema, fake tensors, autograd, AOT."""

import re
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import regard
from tests.contracts import entries
from tests.contracts.entries import FEW_QUERIES, MANY_QUERIES
from tests.contracts.harness import Case, request

CASES = {
    "plain": Case(),
    "causal additive with a sink": Case(mask="causal", score="additive per head", sink=True, sizes=MANY_QUERIES),
    "padding entmax15 relative": Case(mask="padding", normalize="entmax15", bias="relative", sizes=FEW_QUERIES),
    "raw mask, dense bias": Case(mask="raw b h q k", bias="dense b h q k", normalize="sparsemax"),
    "gaussian shaw hard": Case(mask="window both", bias="gaussian", score="shaw", normalize="hard"),
    "bfloat16 documents": Case(mask="documents", dtype=torch.bfloat16, score="cosine per head"),
    "no keys": Case(sizes=entries.Sizes(k=0)),
    "no queries": Case(sizes=entries.Sizes(q=0)),
}


class Recorder(TorchDispatchMode):
    """Writes down every call of an operator of regard."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "regard":
            self.calls.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def record(case, device, **more):
    qkv, arguments, found = request(case, device)
    with Recorder() as seen:
        out, lse = regard.attend(*qkv, **arguments, **more, return_logsumexp=True, impl="tiled")
        leaves = [x for x in found.values() if x.requires_grad]
        torch.autograd.grad([out, lse], leaves, [torch.ones_like(out), torch.ones_like(lse)], allow_unused=True)
    return {str(func): (func, args, kwargs) for func, args, kwargs in seen.calls}


def fresh(x, trainable):
    if isinstance(x, torch.Tensor):
        x = x.detach().clone()
        return x.requires_grad_() if trainable and x.is_floating_point() else x
    return (
        [fresh(y, trainable) for y in x] if isinstance(x, (list, tuple)) and x and isinstance(x[0], torch.Tensor) else x
    )


@pytest.mark.parametrize("name", CASES)
def test_one_call_is_one_operator_forward_and_one_backward(name, device):
    calls = record(CASES[name], device)
    assert set(calls) == {"regard.tiled.default", "regard.tiled_backward.default"}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("operator", ["tiled", "tiled_backward"])
def test_the_operators_pass_torchs_own_check(operator, name, device):
    func, args, kwargs = record(CASES[name], device)[f"regard.{operator}.default"]
    args = tuple(fresh(x, trainable=operator == "tiled") for x in args)
    torch.library.opcheck(func, args, kwargs)


@pytest.mark.parametrize("operator", ["tiled", "tiled_backward"])
def test_the_operators_with_dropout_pass_too(operator, device):
    func, args, kwargs = record(CASES["plain"], device, dropout=0.3)[f"regard.{operator}.default"]
    args = tuple(fresh(x, trainable=operator == "tiled") for x in args)
    torch.library.opcheck(func, args, kwargs)


def test_no_two_modules_define_an_operator_of_the_same_name():
    """Modules with kernels are loaded when asked for, so that two of one name may first meet in a user's process."""
    sources = (path.read_text() for path in (Path(__file__).parents[1] / "src").rglob("*.py"))
    names = [name for text in sources for name in re.findall(r"\.define\(\s*f?\"(\w+)\(", text)]
    assert len(names) > 12 and len(set(names)) == len(names), sorted(names)
