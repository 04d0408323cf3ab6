"""A comparison of three models over three seeds whose numbers are known, made up without running anything."""

import math
from pathlib import Path

from regard_workbench.comparison.comparison import Comparison
from regard_workbench.comparison.job import Contestant, Cost, Outcome

NAMES = ("static-transformer", "dynamic-transformer", "lstm-attention")
SHA = "1a2b3c4d5e6f" + "0" * 52
# By seed. The third is the second and 0.03 more in every seed, which leaves a paired test no spread.
TEST = {NAMES[0]: (0.97, 0.96, 0.98), NAMES[1]: (0.94, 0.95, 0.93), NAMES[2]: (0.97, 0.98, 0.96)}
BLOCKS, IN_A_BLOCK = 20, 50


def blocks_of(share, seed):
    """The metrics' states in blocks of a test split that give the share, some of them easier than others."""
    waves = [0.04 * math.sin(2 * math.pi * place / BLOCKS + seed) for place in range(BLOCKS)]
    return [
        {"accuracy": [(share + wave) * IN_A_BLOCK, float(IN_A_BLOCK)], "loss": [0.2 * IN_A_BLOCK, float(IN_A_BLOCK)]}
        for wave in waves
    ]


def outcome(model, seed, share, attention=None, **changes):
    """A run that finished with this share of right answers in the test."""
    given = {
        "settings": {"task": "digits", "model": model, "attention": attention, "seed": seed, "steps": 1000},
        "folder": f"runs/{model}-{seed}",
        "steps": 1000,
        "seconds": 10.0,
        "stopped_by": "steps",
        "parameters": 1234,
        "metric": "accuracy",
        "validation": {"accuracy": share - 0.01, "loss": 0.1},
        "test": {"accuracy": share, "loss": 0.2},
        "best_step": 900,
        "blocks": blocks_of(share, seed),
        "data_sha256": SHA,
        "command": f"regard train digits --model {model} --seed {seed}",
        "versions": {"regard": "0.1.0", "torch": "2.13.0", "python": "3.11.7", "device": "cpu"},
    }
    return Outcome(model, attention, seed, **{**given, **changes})


def cost(steps_per_second, peak_memory_mib=30.0, parameters=1234):
    """What a step costs."""
    return Cost(steps_per_second, peak_memory_mib, 1e9, parameters, {"inputs": [32, 8, 8]}, "cpu", threads=2)


COSTS = {
    NAMES[0]: cost(210.4, 31.2, 301_000),
    NAMES[1]: cost(95.26, 48.0, 402_000),
    NAMES[2]: cost(151.0, 22.5, 203_000),
}


def comparison(runs=None, contestants=None, **changes):
    """The comparison of these runs; by default of the three models."""
    if runs is None:
        runs = [outcome(name, seed, share) for name in NAMES for seed, share in enumerate(TEST[name])]
    given = {
        "task": "digits",
        "settings": {"task": "digits", "steps": 1000},
        "seeds": [0, 1, 2],
        "costs": COSTS,
        "left_out": [],
        "budget": "1,000 steps",
        "command": "regard compare",
        "out": Path("runs/compare"),
    }
    return Comparison(
        contestants=contestants or [Contestant(name) for name in NAMES], outcomes=runs, **{**given, **changes}
    )
