"""A run is struck in every file-system call; then every reader is asked: evaluate, predict, view, resume, compare.

What each must say comes from a run nobody touched and from hashes made here (benchmarks/killing/judging.py). A sample
runs always, all of it with `make nightly`; `python -m benchmarks.kills` runs the same trials and prints counts.
"""

import argparse
import random

import pytest
from benchmarks.killing.ground import Ground
from benchmarks.killing.trial import HOW

from benchmarks import kills

CALLS = 260  # no run here makes more; the tests say if one does


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    return Ground(tmp_path_factory.mktemp("ground"))


def struck(ground, at, how):
    assert len(ground.calls) <= CALLS
    if at > len(ground.calls):
        pytest.skip("the run makes no such call")
    wrong = ground.at_call(at, how)
    assert not wrong, (ground.calls[at - 1], wrong)


def test_the_untouched_run_has_a_best_that_changes(ground):
    """Else a reader that always took the newest, or the oldest, would be right."""
    assert [ground.reference.best(step) for step in (2, 3, 4, 6, 7)] == [2, 2, 2, 6, 7]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("share", [0.19, 0.53, 0.93])
def test_a_run_struck_in_a_call_loses_nothing(ground, how, share):
    struck(ground, round(share * len(ground.calls)), how)


@pytest.mark.parametrize("how", ["kill", "drop"])
def test_a_run_struck_after_its_last_checkpoint_is_measured_at_its_best(ground, how):
    """There index.json was about to be replaced, and evaluate and compare measured an old checkpoint for good."""
    last = max(at for at, words in enumerate(ground.calls, 1) if words.endswith("checkpoints/step-00000007"))
    struck(ground, last + 2, how)


@pytest.mark.parametrize("seed", range(3))
def test_on_a_disk_whose_fsync_lied_an_answer_is_right_or_does_not_come(ground, seed):
    at = random.Random(seed).randint(len(ground.calls) // 2, len(ground.calls))
    wrong = ground.lied_to(at, seed)
    assert not wrong, wrong


@pytest.mark.nightly
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("at", range(1, CALLS + 1))
def test_a_run_struck_in_any_call_loses_nothing(ground, how, at):
    struck(ground, at, how)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(3, 200))
def test_on_a_disk_whose_fsync_lied_an_answer_is_right_or_does_not_come_many(ground, seed):
    test_on_a_disk_whose_fsync_lied_an_answer_is_right_or_does_not_come(ground, seed)


@pytest.mark.nightly
def test_a_thousand_kills_at_random_moments(ground):
    options = argparse.Namespace(kills=1000, calls="0", lies=0, seconds=1e9, seed=0, part="1/1", how=None)
    assert kills.run(ground, options)["wrong"] == 0
