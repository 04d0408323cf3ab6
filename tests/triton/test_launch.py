"""How kernels are launched: with or without the copy engine, and again by Triton's C function."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from triton.runtime.errors import OutOfResources
from triton.tools.tensor_descriptor import TensorDescriptor

import regard
from regard import biases, masks, normalizers
from regard.dispatch import plan
from regard.implementations.triton.launch import blocks, kernel_work, launching, raw_launches

from .conftest import DEVICE, GPU, LARGE_BLOCKS

_MASKS = {
    "none": None,
    "window": masks.window(7, 0),
    "window and global": masks.window(5, 5) | masks.global_tokens([0, 20]),
}


def _rows(*shape, seed=0):
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return values.to(DEVICE).requires_grad_()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")  # by the first product of autograd's own thread
@pytest.mark.parametrize("name", _MASKS)
@pytest.mark.parametrize("width", [16, 24])
def test_rows_of_every_width_and_layout_give_what_the_reference_gives(name, width):
    length, across = 43, width if LARGE_BLOCKS else 16  # a GPU's float32 backward kernels take one width
    query, key = (_rows(2, 4, length, width), _rows(2, length, 2, width, seed=1))  # keys lie with their heads inside
    value = _rows(1, 2, length, across, seed=2)
    upstream = _rows(2, 4, length, across, seed=3).detach()
    found = []
    for impl in ("reference", "triton"):
        output = regard.attend(query, key.transpose(1, 2), value.expand(2, -1, -1, -1), mask=_MASKS[name], impl=impl)
        found.append([output, *torch.autograd.grad(output, (query, key, value), upstream)])
    for expected, actual in zip(*found, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


class Demanding:
    """A kernel that needs some bytes of shared memory for each stage, on a GPU that has 99 KiB."""

    __name__, arg_names = "demanding", ["X"]

    def __init__(self, each):
        self.each, self.tried = each, []

    def __getitem__(self, grid):
        def run(X, num_stages, **options):
            self.tried.append(num_stages)
            if self.each * num_stages > 99 * 1024:
                raise OutOfResources(self.each * num_stages, 99 * 1024, "shared memory")

        return run


def test_a_gpu_with_little_shared_memory_gets_as_many_stages_as_fit():
    kernel, rows = Demanding(24 * 1024), torch.zeros(3)
    again = launching.Launch(kernel, (1, 1, 1), {"X": rows, "num_stages": 6}, ["X"], repeats=False)
    again(rows)
    again(rows)
    assert kernel.tried == [6, 5, 4, 4]


def test_a_kernel_that_fits_in_no_way_is_refused_with_advice():
    kernel, rows = Demanding(100 * 1024), torch.zeros(3)
    again = launching.Launch(kernel, (1, 1, 1), {"X": rows, "num_stages": 2}, ["X"], repeats=False)
    with pytest.raises(regard.Unsupported, match=r"demanding takes 102400 of shared memory.*impl='tiled'"):
        again(rows)
    assert kernel.tried == [2, 1]


@pytest.mark.parametrize(
    ("width", "dtype", "normalizer", "room", "refused"),
    [
        (256, torch.bfloat16, "softmax", 99, True),
        (256, torch.bfloat16, "softmax", 163, False),
        (128, torch.float32, "softmax", 99, False),
        (128, torch.float32, "sigmoid", 99, True),
        (128, torch.bfloat16, "sigmoid", 99, False),
        (64, torch.float32, "sigmoid", 99, False),
    ],
)
def test_wide_rows_are_refused_on_a_gpu_with_little_shared_memory(monkeypatch, width, dtype, normalizer, room, refused):
    implementation = plan.implementation("triton")
    monkeypatch.setattr(implementation.gpu, "shared_memory", lambda device: room << 10)
    rows = SimpleNamespace(device=torch.device("cuda"), shape=(1, 1, 5, width), dtype=dtype)
    given = SimpleNamespace(query=rows, value=rows, score=None, normalizer=normalizers.named(normalizer))
    why = implementation._too_large(given)
    assert (why is not None) == refused
    assert why is None or (f"rows of {width} numbers" in why and f"the {room} KiB" in why)


def test_the_copy_engine_is_asked_only_for_rows_it_can_read():
    rows = torch.zeros(2, 3, 5, 16, device=DEVICE)
    assert kernel_work.copied_in_bulk(rows, rows.transpose(1, 2))
    assert not kernel_work.copied_in_bulk(rows, rows[..., :12])
    assert not kernel_work.copied_in_bulk(rows[:1].expand(2, -1, -1, -1))
    assert not kernel_work.copied_in_bulk(torch.zeros(2, 3, 5, 17, device=DEVICE)[..., 1:])
    single = kernel_work.described(torch.zeros(1, 3, 5, 16).as_strided((1, 3, 5, 16), (7, 80, 16, 1)), 4)
    assert single.strides == [16, 80, 16, 1] and single.block_shape == [1, 1, 4, 16]


class PyCUtensorMap:
    """Stands in for Triton's tensor map, which is known by its name."""

    def __init__(self, address, pattern):
        self.address, self.shape = address, tuple(pattern.shape)


def _python_part(launcher):
    """What Triton's Python code does around its C function, for kernels that take descriptors."""

    def inner(*arguments):
        head, values = (
            (arguments[:-1], arguments[-1]) if isinstance(arguments[-1], tuple) else (arguments[:9], arguments[9:])
        )
        flat = []
        for value in values:
            if isinstance(value, TensorDescriptor):
                flat += [PyCUtensorMap(value.base.data_ptr(), value), *value.shape, *value.strides]
            else:
                flat.append(value)
        return launcher(*head, tuple(flat)) if isinstance(arguments[-1], tuple) else launcher(*head, *flat)

    return inner


class _Run:
    """Triton's launcher of one kernel: `nested` as in its later versions."""

    def __init__(self, noted, nested):
        self.nested, self.launch = nested, _python_part(lambda *arguments: noted.append(arguments))

    def __call__(self, x, y, z, stream, function, metadata, for_hooks, enter, leave, *values):
        head = (x, y, z, stream, function, metadata, for_hooks, enter, leave)
        self.launch(*head, values) if self.nested else self.launch(*head, *values)


class _Kernel:
    """Stands in for a Triton kernel and records its launches: by Triton, and by its C function."""

    arg_names = ("A", "size", "B", "C", "D")
    function, packed_metadata = 77, (4, 1, 0)
    metadata = SimpleNamespace(global_scratch_size=0, profile_scratch_size=0)

    def __init__(self, nested=False):
        self.first, self.later = [], []
        self.run = _Run(self.later, nested)

    def __getitem__(self, grid):
        def run(**named):
            self.first.append((grid, named))
            return self

        return run


@pytest.fixture
def raw(monkeypatch):
    """Launch as on a GPU."""
    monkeypatch.setattr(launching, "INTERPRETED", False)
    monkeypatch.setattr(launching, "refusal", lambda device: None)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 5, raising=False)


def _launch(kernel, table, first, second):
    arguments = {"A": first, "size": 7, "B": TensorDescriptor.from_tensor(second, [2, 4]), "C": (1, table), "D": 0.5}
    return launching.Launch(kernel, (5, 1, 1), arguments, ["B", "A"])


@pytest.mark.parametrize("nested", [False, True], ids=["flat", "nested"])
def test_a_second_launch_passes_to_the_c_function_what_triton_passed_with_the_new_tensors(raw, nested):
    kernel, table = _Kernel(nested), torch.zeros(3)
    one, two, three = (torch.full((4, 4), float(n)) for n in (1, 2, 3))
    launch = _launch(kernel, table, one, two)
    assert launch.arguments["A"] is None and launch.gaps[0][2].base is None  # no tensor is kept
    launch(two, one)
    launch(one, three)
    launch(one, three)
    assert len(kernel.first) == 1 and kernel.first[0][0] == (5, 1, 1) and len(kernel.later) == 2
    head, values = kernel.later[0][:9], kernel.later[0][9] if nested else kernel.later[0][9:]
    assert head == (5, 1, 1, 5, 77, (4, 1, 0), None, None, None)
    a, size, b, *described, constants, number = values
    assert (a, size, number) == (three.data_ptr(), 7, 0.5) and constants == (1, table.data_ptr())
    assert b.address == one.data_ptr() and b.shape == (4, 4) and described == [4, 4, 4, 1]
    again = kernel.later[1][9] if nested else kernel.later[1][9:]
    assert again[2] is b  # the map of an address is made once


def test_the_same_tensor_may_be_passed_twice(raw):
    kernel, one = _Kernel(), torch.ones(4, 4)
    launch = _launch(kernel, torch.zeros(3), one, one)
    launch(one, one)
    launch(one, one)
    assert kernel.later[0][9] == one.data_ptr() and kernel.later[0][11].address == one.data_ptr()


def test_launches_go_through_triton_where_raw_ones_are_refused_or_watched(raw, monkeypatch):
    kernel, rows = _Kernel(), torch.zeros(4, 4)
    launch = _launch(kernel, rows, rows, rows)
    monkeypatch.setattr(launching, "refusal", lambda device: "not checked")
    launch(rows, rows)
    launch(rows, rows)
    assert len(kernel.first) == 2 and not kernel.later
    monkeypatch.setattr(launching, "refusal", lambda device: None)
    launch(rows, rows)
    monkeypatch.setattr(launching, "watched", lambda: True)
    launch(rows, rows)
    assert len(kernel.first) == 4 and not kernel.later
    monkeypatch.setattr(launching, "watched", lambda: False)
    launch(rows, rows)
    assert len(kernel.first) == 4 and len(kernel.later) == 1


def test_unaligned_tensors_have_no_launches_to_repeat():
    prepared = blocks.prepare(None, None, (1, 1, 4, 4), torch.device("cpu"))
    odd, even = torch.zeros(65)[1:].view(1, 1, 4, 16), torch.zeros(1, 1, 4, 16)
    score = regard.scores.dot()
    assert kernel_work.find_launches(prepared, odd, even, even, score, 1.0) is None
    assert kernel_work.find_launches(prepared, even, even, even, score, 1.0, others=(odd,)) is None
    known = kernel_work.find_launches(prepared, even, even, even, score, 1.0)
    assert known is kernel_work.find_launches(prepared, even, even, even, score, 1.0)
    assert known is not kernel_work.find_launches(prepared, even, even, even, score, 0.5)


def test_what_code_is_compiled_for_is_told_from_the_arguments():
    parameters = [
        SimpleNamespace(is_constexpr=constant, do_not_specialize=plain)
        for constant, plain in ((False, False), (False, False), (False, True), (False, True), (True, False))
    ]
    kernel, rows = SimpleNamespace(params=parameters), torch.zeros(9)

    def kinds(tensor=rows, number=5, plain=5, numbers=(5, 5), constant="x"):
        return launching._kinds(kernel, (tensor, number, plain, numbers, constant))

    same = [{"number": 7}, {"plain": 16}, {"plain": 1}, {"numbers": (6, 7)}, {"tensor": torch.zeros(4)}]
    assert all(kinds(**change) == kinds() for change in same)
    other = [
        {"number": 1},
        {"number": 32},
        {"number": 2**31},
        {"plain": 2**31},
        {"numbers": (5, 1)},
        {"numbers": (16, 5)},
        {"numbers": (5, 5, 5)},
        {"tensor": rows[1:]},
        {"tensor": rows.double()},
        {"tensor": None},
        {"constant": "y"},
        {"number": 5.0},
    ]
    assert all(kinds(**change) != kinds() for change in other)


def test_a_failed_check_of_raw_launches_says_what_failed(monkeypatch):
    def fail(device):
        raise AttributeError("no launcher")

    monkeypatch.setattr(raw_launches, "_compare", fail)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    why = raw_launches._checked(torch.device("cuda", 0))
    assert "AttributeError: no launcher" in why
    monkeypatch.setattr(raw_launches, "_REFUSAL", [why])
    assert plan._reason("triton").endswith("raised AttributeError: no launcher")
    monkeypatch.setattr(raw_launches, "_REFUSAL", [])
    assert plan._reason("triton") == plan._REASONS["triton"]


def test_kept_launches_hold_no_tensor_of_a_call():
    given, mask = ([_rows(1, 1, 19, 16, seed=n) for n in range(3)], masks.window(6, 1) | masks.global_tokens([2]))
    output = regard.attend(*given, mask=mask, impl="triton")
    torch.autograd.grad(output, given, torch.ones_like(output))
    prepared = blocks.prepare(mask, None, (1, 1, 19, 19), torch.device(DEVICE, 0) if GPU else torch.device("cpu"))
    kept = [launch for known in prepared.launches.values() for launch in known.values()]
    assert len(kept) == 4
    own = {
        id(tensor)
        for tensor in (
            *prepared.tables,
            *[t for one in prepared.cached_lists.values() for t in (one.index, one.counts)],
        )
    }
    for launch in kept:
        tensors = [value for value in launch.arguments.values() if isinstance(value, torch.Tensor)]
        assert all(id(tensor) in own or tensor.dtype == torch.int32 for tensor in tensors)


def test_a_mask_with_tensors_is_prepared_once_and_let_go_with_it():
    mask = masks.causal() & masks.documents(torch.arange(35, device=DEVICE)[None] // 8)
    sizes, device = (1, 1, 35, 35), torch.device(DEVICE)
    first = blocks.prepare(mask, None, sizes, device)
    assert blocks.prepare(mask, None, sizes, device) is first
    assert blocks.prepare(mask, None, (1, 2, 35, 35), device) is not first
    before = len(blocks._OF_MASKS)
    del mask
    assert len(blocks._OF_MASKS) == before - 1


@pytest.mark.parametrize("mask", [masks.window(3), masks.lengths(torch.tensor([9]))], ids=["window", "lengths"])
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
