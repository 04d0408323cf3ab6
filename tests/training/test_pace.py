"""Steps per second leave out the first steps of a process, which compile."""

import pytest

from regard_workbench.training.progress import WARM_UP, Pace


def test_the_first_steps_and_the_waits_for_them_are_left_out():
    pace = Pace()
    for _ in range(WARM_UP):
        pace.add_step(7.0)
    pace.add_wait(3.0)
    for _ in range(8):
        pace.add_step(0.25)
    pace.add_wait(2.0)
    assert pace.steps_per_second == pytest.approx(8 / 4.0)
    assert pace.seconds == pytest.approx(WARM_UP * 7 + 3 + 4)


def test_a_run_of_few_steps_has_a_pace_too():
    pace = Pace()
    assert pace.steps_per_second == 0
    pace.add_step(0.5)
    pace.add_step(1.5)
    assert pace.steps_per_second == pytest.approx(1.0)
