"""Calls that run as on a GPU and launch nothing: which arguments reach Triton's C function, from which way."""

import threading

import pytest
import torch
from benchmarks.unlaunched import unlaunched

import regard
from benchmarks import unlaunched as stand_in
from regard.dispatch import repeated_calls
from regard.implementations.triton.launch.block_sizes import INTERPRETED
from regard_workbench.bench.gpu.host import WORKS
from regard_workbench.bench.gpu.work import Size, gradient, inputs

pytestmark = pytest.mark.skipif(INTERPRETED, reason="the interpreter has no C function")

SIZE = Size(2, 3, 149, 64)
UPSTREAM = gradient(SIZE, "cpu", torch.bfloat16)
STREAM = 3  # the place of the stream among the arguments


@pytest.fixture
def launched(monkeypatch):
    """What the C function was called with."""
    noted = []
    monkeypatch.setattr(stand_in, "_nothing", lambda *arguments: noted.append(arguments))
    with unlaunched():
        yield noted


def rows(trains=True):
    return inputs(SIZE, "cpu", torch.bfloat16, grad=trains)


def step(given, **options):
    output = regard.attend(*given, **options)
    return output, torch.autograd.grad(output, given, UPSTREAM)


def flat(arguments):
    """The arguments, with the addresses for which tensor maps were made in their place."""
    return [getattr(one, "address", one) for one in arguments]


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.name)
def test_a_repeated_training_call_makes_four_launches_at_its_own_addresses(work, launched):
    options = work.options(SIZE, "cpu")
    for _ in range(2):
        step(rows(), **options)
    launched.clear()
    given = rows()
    output, grads = step(given, **options)
    forward, of_rows, by_key, by_query = (flat(one) for one in launched)
    at_query, at_key, at_value = (one.data_ptr() for one in given)
    assert {at_query, at_key, at_value, output.data_ptr()} <= set(forward)
    assert output.data_ptr() in of_rows
    assert {at_query, at_key, at_value, grads[1].data_ptr(), grads[2].data_ptr()} <= set(by_key)
    assert {at_query, at_key, at_value, grads[0].data_ptr()} <= set(by_query)
    assert all(one.is_contiguous() and one.shape == given[0].shape for one in (output, *grads))


def test_launches_by_address_get_the_arguments_that_launches_by_tensors_get(launched, monkeypatch):
    """Only the addresses of what a call allocates differ."""
    options, found = WORKS[0].options(SIZE, "cpu"), []
    given = rows()
    for way in ("warm", "warm", "usual", "direct"):
        with monkeypatch.context() as patch:
            if way == "usual":
                patch.setattr(repeated_calls, "signature", lambda *given: None)
            launched.clear()
            output = regard.attend(*given, **options)
            torch.autograd.grad(output, given, UPSTREAM)
        found.append([flat(one) for one in launched])
    fixed = {one.data_ptr() for one in (*given, UPSTREAM)}
    for usual, direct in zip(*found[2:], strict=True):
        assert len(usual) == len(direct)
        for one, other in zip(usual, direct, strict=True):
            large = isinstance(one, int) and one > 2**24  # an address; no size or stride here is as large
            assert one == other or (large and one not in fixed and other not in fixed), (one, other)


def test_another_device_or_a_capture_takes_the_usual_way(launched, monkeypatch):
    options = WORKS[0].options(SIZE, "cpu")
    for _ in range(2):
        step(rows(), **options)
    (run,) = repeated_calls.KNOWN.values()
    assert run(*rows(), options) is not None
    with monkeypatch.context() as patch:
        patch.setattr(torch._C, "_cuda_getDevice", lambda: 1)
        assert run(*rows(), options) is None
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda.graphs, "_cuda_isCurrentStreamCapturing", lambda: True)
        assert run(*rows(), options) is None
    with monkeypatch.context() as patch:  # the stream that is current in this call
        patch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 12345)
        launched.clear()
        step(rows(), **options)
        assert [one[STREAM] for one in launched] == [12345] * 4


def test_a_profiler_sees_every_launch(launched, monkeypatch):
    from regard.implementations.triton.dot import direct
    from regard.implementations.triton.launch import launching

    options = WORKS[0].options(SIZE, "cpu")
    for _ in range(2):
        step(rows(), **options)
    for home in (direct, launching):
        monkeypatch.setattr(home, "watched", lambda: True)
    launched.clear()
    step(rows(), **options)
    assert not launched  # Triton made them


def test_threads_do_not_mix_their_arguments(launched):
    options, made = WORKS[0].options(SIZE, "cpu"), []  # tensors are kept, so that each has its own address
    for _ in range(2):
        step(rows(), **options)
    launched.clear()

    def work():
        for _ in range(10):
            given = rows()
            made.append((given, *step(given, **options)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(launched) == 4 * 10 * 4
    for given, output, grads in made:
        mine = {one.data_ptr() for one in given}
        calls = [flat(one) for one in launched if mine <= set(flat(one))]
        assert len(calls) == 3
        assert [sum(one.data_ptr() in call for call in calls) for one in (output, *grads)] == [1] * 4


@torch.no_grad()
def test_one_token_is_two_launches_that_share_one_piece_of_memory(launched):
    given = [torch.randn(1, heads, n, 128, dtype=torch.bfloat16) for heads, n in ((32, 1), (8, 4096), (8, 4096))]
    for _ in range(2):
        regard.attend(*given)
    launched.clear()
    output = regard.attend(*given)
    first, second = launched
    assert {output.data_ptr(), *[one.data_ptr() for one in given]} <= set(first)
    parts, _, found, logsumexp = second[13:17]
    assert found == output.data_ptr() and {parts, logsumexp} <= set(first)
    assert parts == logsumexp + 4 * 32 and parts % 16 == 0 and logsumexp % 16 == 0  # one for each head
