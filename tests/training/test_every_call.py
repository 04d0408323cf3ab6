"""A run is killed in each file-system call; then every reader is run: evaluate, predict, view, resume, compare.

Their expected answers come from an uninterrupted run and from hashes made here (bench/killing/judging.py). A
sample always runs, all of it with `make nightly`; `python -m bench.kills` runs the same trials and prints counts.
"""

import argparse
import random

import pytest

from bench import kills
from bench.killing.ground import Ground
from bench.killing.trial import HOW

CALLS = 260  # an upper bound, asserted below

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    return Ground(tmp_path_factory.mktemp("ground"))


def assert_survives(ground, at, how):
    assert len(ground.calls) <= CALLS
    if at > len(ground.calls):
        pytest.skip("the run makes no such call")
    wrong = ground.at_call(at, how)
    assert not wrong, (ground.calls[at - 1], wrong)


def test_the_best_checkpoint_of_the_reference_run_changes(ground):
    """Otherwise a reader that always takes the newest, or the oldest, would pass."""
    assert [ground.reference.best(step) for step in (2, 3, 4, 6, 7)] == [2, 2, 2, 6, 7]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(
    "share", [pytest.param(0.19, marks=pytest.mark.nightly), 0.53, pytest.param(0.93, marks=pytest.mark.nightly)]
)
def test_a_failure_in_a_file_system_call_loses_nothing(ground, how, share):
    assert_survives(ground, round(share * len(ground.calls)), how)


@pytest.mark.parametrize("how", ["kill", "drop"])
def test_a_run_killed_after_its_last_checkpoint_is_measured_at_its_best(ground, how):
    """Here, before an index.json was updated, evaluate and compare once measured an old checkpoint forever."""
    last = max(at for at, words in enumerate(ground.calls, 1) if words.endswith("checkpoints/step-00000007"))
    assert_survives(ground, last + 2, how)


@pytest.mark.parametrize("seed", range(3))
def test_if_fsync_did_not_write_an_answer_is_right_or_refused(ground, seed):
    at = random.Random(seed).randint(len(ground.calls) // 2, len(ground.calls))
    wrong = ground.lied_to(at, seed)
    assert not wrong, wrong


@pytest.mark.nightly
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("at", range(1, CALLS + 1))
def test_a_failure_in_any_file_system_call_loses_nothing(ground, how, at):
    assert_survives(ground, at, how)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(3, 200))
def test_if_fsync_did_not_write_an_answer_is_right_or_refused_many(ground, seed):
    test_if_fsync_did_not_write_an_answer_is_right_or_refused(ground, seed)


@pytest.mark.nightly
def test_a_thousand_kills_at_random_moments(ground):
    options = argparse.Namespace(kills=1000, calls="0", lies=0, seconds=1e9, seed=0, part="1/1", how=None)
    assert kills.run(ground, options)["wrong"] == 0
