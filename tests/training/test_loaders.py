"""Processes that collate batches ahead: the same batches as without them, and errors that arrive."""

import os
import time

import pytest
import torch

from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.training import train
from regard_workbench.training.loaders import LoaderDied, Loaders


def collated(index: int) -> Batch:
    """A batch whose numbers, lengths and notes tell its index."""
    length = 3 + index % 5
    inputs = torch.arange(2 * length * 7, dtype=torch.float32).view(2, length, 7) + 1000 * index
    keep = torch.ones(2, length, dtype=torch.bool)
    return Batch.of(inputs, keep, torch.tensor([index, -index]), made=(f"note {index}", os.getpid()))


def check(found: Batch, index: int) -> None:
    expected = collated(index).tensors()
    assert found.tensors().keys() == expected.keys()
    for name, tensor in found.tensors().items():
        assert tensor.dtype == expected[name].dtype
        assert torch.equal(tensor, expected[name]), (index, name)
    assert found.notes["made"][0] == f"note {index}"


@pytest.mark.parametrize(("count", "stride"), [(1, 1), (3, 1), (2, 3)])
def test_batches_are_those_of_the_indices_in_any_order(count, stride):
    loaders = Loaders(collated, count, stride)
    try:
        order = [*range(2, 2 + 17 * stride, stride), 5, 5 + stride, 400, 0]  # a resumed run jumps
        for place, index in enumerate(order):
            found = loaders[index]
            check(found, index)
            assert place == 0 or found.notes["made"][1] != os.getpid()
    finally:
        loaders.close()


def test_a_batch_larger_than_the_shared_memory_comes_whole():
    def grows(index: int) -> Batch:
        return Batch.of(torch.full((1 + 40 * index, 11), float(index)))

    loaders = Loaders(grows, 2)
    try:
        for index in range(5):
            found = loaders[index].inputs
            assert found.shape == (1 + 40 * index, 11)
            assert bool((found == index).all())
    finally:
        loaders.close()


def test_an_error_in_a_loader_is_raised_by_the_batch_that_has_it():
    def broken(index: int) -> Batch:
        if index == 3:
            raise KeyError("no third")
        return collated(index)

    loaders = Loaders(broken, 2)
    try:
        for index in range(3):
            check(loaders[index], index)
        with pytest.raises(KeyError, match="no third"):
            loaders[3]
        check(loaders[4], 4)
    finally:
        loaders.close()


def test_the_end_of_a_loader_is_reported():
    def dies(index: int) -> Batch:
        if index == 2:
            os._exit(3)
        return collated(index)

    loaders = Loaders(dies, 1)
    try:
        check(loaders[0], 0)
        with pytest.raises(LoaderDied, match="exit code 3"):
            for index in range(1, 4):
                loaders[index]
    finally:
        loaders.close()


def test_closing_ends_the_processes():
    loaders = Loaders(collated, 2)
    loaders[0]
    numbers = [process.pid for process in loaders.processes]
    loaders.close()
    until = time.monotonic() + 10
    while any(os.path.exists(f"/proc/{number}") for number in numbers):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_run_with_loaders_learns_the_same_as_one_without(tmp_path):
    given = {
        "task": "detect(scenes=40)",
        "model": "detector(dim=16, width=4, queries=5)",
        "steps": 5,
        "batch_size": 3,
        "eval_limit": 3,
        "seed": 11,
        "device": "cpu",
    }
    plain, ahead = (
        train({**given, "loaders": count, "out": str(tmp_path / str(count))}, quiet=True) for count in (0, 2)
    )
    assert plain.metrics == ahead.metrics
