"""Run in its own process: extra peak memory of one mechanism at growing lengths, printed as JSON.

python -m tests.contracts.memory_probe NAME LENGTH…
"""

import ctypes
import gc
import json
import os
import sys
from types import FunctionType

import torch

import regard
from regard import biases, masks, normalizers, scores

D = 8
# The environment of a process that measures. glibc raises the size from which freed memory is given back at once;
# with that size fixed, one probe does not find the freed blocks of another on the heap.
FIXED_THRESHOLD = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(1 << 16)}


class Own(normalizers.Normalizer):
    """A normaliser from outside the library."""

    def __call__(self, scores, visible):
        return normalizers.softmax()(scores, visible)


def attend(**arguments):
    def call(query, key, value):
        extra = {name: x(query.shape[2]) if isinstance(x, FunctionType) else x for name, x in arguments.items()}
        leaves = [x.requires_grad_() for x in (query, key, value)]
        out = regard.attend(*leaves, **extra)
        out.backward(torch.ones_like(out))

    return call


def rows(query, key, value):
    regard.weights(query, key, rows=range(16), normalize="entmax15")


def summary(query, key, value):
    regard.summarize(query, key, mask=masks.causal(), top=4)


def lengths(n):
    return masks.causal() & masks.lengths(torch.tensor([n - 7]))


def table():
    return torch.randn(1, 65, requires_grad=True)


PROBES = {
    "tiled full": attend(impl="tiled"),
    "tiled causal lengths": attend(mask=lengths, impl="tiled"),
    "tiled additive": attend(score=lambda n: scores.additive(torch.randn(D)), impl="tiled"),
    "tiled window entmax15": attend(mask=masks.window(300), normalize="entmax15", impl="tiled"),
    "tiled sparsemax relative": attend(
        normalize="sparsemax", bias=lambda n: biases.relative(table()), mask=masks.causal(), impl="tiled"
    ),
    "tiled shaw": attend(score=lambda n: scores.shaw(torch.randn(33, D)), impl="tiled"),
    "tiled dropout": attend(dropout=0.2, impl="tiled"),
    "tiled own": attend(normalize=Own(), impl="tiled"),
    "tiled documents": attend(mask=lambda n: masks.documents((torch.arange(n) // 50)[None]), impl="tiled"),
    "auto causal": attend(mask=masks.causal()),
    "auto window": attend(mask=masks.window(200, 0)),
    "auto dropout": attend(dropout=0.2, mask=masks.causal()),
    "sdpa": attend(impl="sdpa"),
    "sdpa lengths": attend(mask=lambda n: masks.lengths(torch.tensor([n - 7])), impl="sdpa"),
    "sdpa causal": attend(mask=masks.causal(), impl="sdpa"),
    "weights of 16 rows": rows,
    "summarize": summary,
    "reference": attend(impl="reference"),  # the probe must see a quadratic one
}


def status(field):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def peak(call, n, dim=D):
    """Bytes above what is held before the call."""
    tensors = [torch.randn(1, 1, n, dim) for _ in range(3)]
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # give freed blocks back, so that they are counted again
    with open("/proc/self/clear_refs", "w") as reset:
        reset.write("5")  # the high-water mark starts again from here
    before = status("VmRSS")
    call(*tensors)
    return status("VmHWM") - before


def main(names, lengths):
    torch.set_num_threads(1)
    found = {}
    for name in names:
        call = PROBES[name]
        peak(call, 257)  # code, tables and pools of a first call
        found[name] = {n: peak(call, n) for n in lengths}
    print(json.dumps(found))


if __name__ == "__main__":
    names = sys.argv[1].split(",")
    main(list(PROBES) if names == ["all"] else names, [int(n) for n in sys.argv[2:]])
