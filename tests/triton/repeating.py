"""Help for tests of training calls that repeat: rows, steps, and launches by address in the interpreter."""

import ctypes
from contextlib import contextmanager

import pytest
import torch

import regard
from regard import biases, masks, scores
from regard.dispatch import repeated_calls
from regard.implementations.triton.dot import direct
from regard.implementations.triton.launch import blocks, launching

from .conftest import DEVICE

B, H, G, N, D = 2, 2, 1, 19, 16
NUMBERS = {
    torch.float64: ctypes.c_double,
    torch.float32: ctypes.c_float,
    torch.int64: ctypes.c_int64,
    torch.int32: ctypes.c_int32,
}


@pytest.fixture(autouse=True)
def empty_table():
    repeated_calls.KNOWN.clear()
    yield
    repeated_calls.KNOWN.clear()


class Before(masks.Mask):
    """A mask that a user might write, and that has not copied its tensor."""

    last: torch.Tensor

    def visible(self, grid):
        return grid.column < self.last

    def ends(self, sizes, device):
        return torch.zeros(1, 1, sizes[2], device=device), self.last.expand(1, 1, sizes[2])


def placed(address, shape, strides, dtype):
    """The tensor at an address."""
    count = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    memory = (NUMBERS[dtype] * count).from_address(address)
    return torch.frombuffer(memory, dtype=dtype).as_strided(shape, strides)


@contextmanager
def launched_by_address(monkeypatch):
    """Launches are ready after the first, as on a GPU; the interpreter then gets the tensors at the addresses.

    Yields the streams on which something was launched by address.
    """
    streams, call = [], launching.Launch.__call__

    def run(self, *tensors):
        self.ready = False
        call(self, *tensors)
        self.ready = True

    def first(self, *tensors):
        self.forms = [(tensor.shape, tensor.stride(), tensor.dtype) for tensor in tensors]
        run(self, *tensors)

    def at(self, stream, given):
        streams.append(stream)
        run(self, *[placed(one, *form) for one, form in zip(given, self.forms, strict=True)])

    monkeypatch.setattr(launching.Launch, "__call__", first)
    monkeypatch.setattr(launching.Launch, "at", at)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 7, raising=False)
    forget()
    yield streams
    forget()
    assert set(streams) <= {7}


def forget():
    """Drop launches that were made otherwise."""
    blocks._BY_SPEC.clear()
    blocks._OF_MASKS.clear()


def drawn(seed=0, queries=N, keys=N, heads=H, groups=G, trains=True):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((heads, queries), (groups, keys), (groups, keys))
    made = [torch.randn(B, h, n, D, generator=generator).to(DEVICE) for h, n in shapes]
    return [one.requires_grad_(trains) for one in made]


def upstream(seed=9, queries=N):
    return torch.randn(B, H, queries, D, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def ids():
    return (torch.arange(N, device=DEVICE)[None] // 7).expand(B, -1)


OPTIONS = {
    "none": lambda: {},
    "window": lambda: {"mask": masks.window(7, 0)},
    "global": lambda: {"mask": masks.window(5, 5) | masks.global_tokens([0, 11])},
    "documents": lambda: {"mask": masks.causal() & masks.documents(ids())},
    "padding": lambda: {"mask": masks.lengths(torch.tensor([N, 11], device=DEVICE))},
    "prefix": lambda: {"mask": masks.prefix(5), "scale": 1},
    "alibi": lambda: {"mask": masks.causal(), "bias": biases.alibi(H)},
    "softcap": lambda: {"mask": masks.causal(), "score": scores.softcap(3.0), "return_logsumexp": False},
}


def step(rows, grad=None, wanted=None, **options):
    """The output and the gradients."""
    output = regard.attend(*rows, impl="triton", **options)
    wanted = [one for one in rows if one.requires_grad] if wanted is None else wanted
    return [output, *torch.autograd.grad(output, wanted, upstream() if grad is None else grad)]


@contextmanager
def counted(monkeypatch):
    """Which calls took the short way: True, or False for those that it gave back."""
    answered, run = [], direct.DirectCall.run

    def watching(self, *given):
        found = run(self, *given)
        answered.append(found is not None)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(direct.DirectCall, "run", watching)
        repeated_calls.KNOWN.clear()
        yield answered


def same(found, expected):
    assert len(found) == len(expected)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def turned(rows):
    """The same rows with heads inside."""
    return [one.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for one in rows]
