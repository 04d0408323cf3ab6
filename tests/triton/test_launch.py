"""How kernels are launched: with or without the copy engine, and again without checking every argument."""

import pytest
import torch
from triton.tools.tensor_descriptor import TensorDescriptor

import regard
from regard import biases, masks
from regard.implementations.triton import blocks, launch, relaunch

from .conftest import DEVICE, GPU

_MASKS = {
    "none": None,
    "window": masks.window(7, 0),
    "window and global": masks.window(5, 5) | masks.global_tokens([0, 20]),
}


def _rows(*shape, seed=0):
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return values.to(DEVICE).requires_grad_()


@pytest.mark.slow
@pytest.mark.parametrize("name", _MASKS)
@pytest.mark.parametrize("width", [16, 24])
def test_rows_of_every_width_and_layout_give_what_the_reference_gives(name, width):
    length, across = 43, width if GPU else 16  # a GPU's float32 backward kernels take one width
    query, key = (
        _rows(2, 4, length, width),
        _rows(2, length, 2, width, seed=1),
    )  # keys lie with their heads inside
    value = _rows(1, 2, length, across, seed=2)
    upstream = _rows(2, 4, length, across, seed=3).detach()
    found = []
    for impl in ("reference", "triton"):
        output = regard.attend(
            query, key.transpose(1, 2), value.expand(2, -1, -1, -1), mask=_MASKS[name], impl=impl
        )
        found.append([output, *torch.autograd.grad(output, (query, key, value), upstream)])
    for expected, actual in zip(*found, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_the_copy_engine_is_asked_only_for_rows_it_can_read():
    rows = torch.zeros(2, 3, 5, 16, device=DEVICE)
    assert launch.copied_in_bulk(rows, rows.transpose(1, 2))
    assert not launch.copied_in_bulk(rows, rows[..., :12])
    assert not launch.copied_in_bulk(rows[:1].expand(2, -1, -1, -1))
    assert not launch.copied_in_bulk(torch.zeros(2, 3, 5, 17, device=DEVICE)[..., 1:])
    single = launch.described(torch.zeros(1, 3, 5, 16).as_strided((1, 3, 5, 16), (7, 80, 16, 1)), 4)
    assert single.strides == [16, 80, 16, 1] and single.block_shape == [1, 1, 4, 16]


class _Kernel:
    """Stands in for a Triton kernel and records its launches."""

    arg_names = ("A", "size", "B", "C")

    def __init__(self):
        self.first, self.later = [], []

    def __getitem__(self, grid):
        def run(*values, **named):
            (self.later if values else self.first).append((grid, values or named))
            return self

        return run


def test_a_second_launch_has_the_same_arguments_with_the_new_tensors(monkeypatch):
    monkeypatch.setattr(relaunch, "INTERPRETED", False)
    kernel, memory = _Kernel(), {}

    def call(a, b, key="key", size=7):
        def arguments():
            described = TensorDescriptor.from_tensor(b, [2, 4])
            return {"C": (1, 2), "B": described, "A": a, "size": size, "num_warps": 4}

        relaunch.launch(kernel, 5, memory, key, {"A": a, "B": b}, arguments)

    one, two, three = (torch.full((4, 4), float(n)) for n in (1, 2, 3))
    call(one, two)
    call(three, one)
    assert len(kernel.first) == 1 and kernel.first[0][0] == (5,)
    grid, (a, size, b, c) = kernel.later[0]
    assert grid == (5, 1, 1) and a is three and size == 7 and c == (1, 2)
    assert b.base is one and b.shape == two.shape and b.block_shape == [2, 4] and b.padding == "zero"
    assert memory["key"].values[0] is None and memory["key"].values[2].base is None  # no tensor is kept
    call(one, two, key="another", size=8)
    assert len(kernel.first) == 2 and len(memory) == 2


def test_unaligned_tensors_are_checked_in_every_launch(monkeypatch):
    monkeypatch.setattr(relaunch, "INTERPRETED", False)
    kernel, memory = _Kernel(), {}
    odd = torch.zeros(9)[1:]

    def arguments():
        return {"A": odd, "size": 1, "B": None, "C": None}

    for _ in range(2):
        relaunch.launch(kernel, 1, memory, "key", {"A": odd}, arguments)
    assert len(kernel.first) == 2 and not memory


def test_a_mask_with_tensors_is_prepared_once_and_let_go_with_it():
    mask = masks.causal() & masks.documents(torch.arange(35, device=DEVICE)[None] // 8)
    sizes, device = (1, 1, 35, 35), torch.device(DEVICE)
    first = blocks.prepare(mask, None, sizes, device)
    assert blocks.prepare(mask, None, sizes, device) is first
    assert blocks.prepare(mask, None, (1, 2, 35, 35), device) is not first
    before = len(blocks._OF_MASKS)
    del mask
    assert len(blocks._OF_MASKS) == before - 1


class Before(masks.Mask):
    """A mask that a user might write, and that has not copied its tensor."""

    last: torch.Tensor

    def visible(self, grid):
        return grid.column < self.last

    def ends(self, sizes, device):
        return torch.zeros(1, 1, sizes[2], device=device), self.last.expand(1, 1, sizes[2])


def test_a_mask_whose_tensor_was_changed_is_prepared_again():
    mask, rows = Before(torch.tensor(5, device=DEVICE)), [_rows(1, 1, 20, 16, seed=n) for n in range(3)]
    for last in (5, 11):
        mask.last.fill_(last)
        found, truth = (regard.attend(*rows, mask=mask, impl=impl) for impl in ("triton", "reference"))
        torch.testing.assert_close(found, truth, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "mask", [masks.window(3), masks.lengths(torch.tensor([9]))], ids=["window", "lengths"]
)
def test_what_is_made_while_a_graph_is_recorded_serves_that_graph_alone(mask, monkeypatch):
    monkeypatch.setattr(blocks, "capturing", lambda: True)
    sizes, device = (1, 1, 23, 29), torch.device("cpu")
    first = blocks.prepare(mask, None, sizes, device)
    assert blocks._CAPTURED.pop(id(first)) is first
    monkeypatch.setattr(blocks, "capturing", lambda: False)
    assert blocks.prepare(mask, None, sizes, device) is not first


@pytest.mark.parametrize("where", [{"align": "top-left"}, {"offset": 9}], ids=str)
def test_distances_from_an_offset_give_what_the_reference_gives(where):
    query, key, value = _rows(1, 3, 11, 16), _rows(1, 3, 23, 16, seed=1), _rows(1, 3, 23, 16, seed=2)
    table, buckets = _rows(3, 11, seed=3), _rows(8, 3, seed=4)
    upstream = _rows(1, 3, 11, 16, seed=5).detach()
    for build in (
        lambda: biases.alibi(3, **where) + biases.relative(table, **where),
        lambda: biases.t5(buckets, max_distance=20, **where),
    ):
        used = (query, key, value, *[t for t in (table, buckets) if any(t is x for x in build().tensors)])
        found = []
        for impl in ("reference", "triton"):
            output = regard.attend(query, key, value, bias=build(), mask=masks.window(17, **where), impl=impl)
            found.append([output, *torch.autograd.grad(output, used, upstream)])
        for expected, actual in zip(*found, strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
