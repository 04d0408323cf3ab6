"""Run a layer over a sequence in steps, passing the state from call to call."""

import torch

import regard.nn
from regard import masks
from regard.nn.parts.mechanism import options_of
from tests.nn.contracts.layers import ALL, CAUSAL, Case


def from_the_top_left(case):
    """The case with align="top-left", where the mechanism has that option."""
    if "align" not in options_of(regard.nn.entry(case.name).layer):
        return case
    return Case(case.name, {**case.options, "align": "top-left"})


# Steps over one source, for every form of every mechanism.
OVER_A_SOURCE = [from_the_top_left(case) for case in dict.fromkeys(ALL + CAUSAL)]
OVER_A_SOURCE.append(Case("key-value-memory", {"positions": "alibi"}))


def steps(layer, rows, sizes, state=None, keep=None, only_new=False):
    """The joined outputs of all steps, and the last state. `keep` (b,length) is False for padding."""
    state = layer.initial_state(rows.shape[0]) if state is None else state
    found, start = [], 0
    for size in sizes:
        end = start + size
        mask = None if keep is None else masks.padding(keep[:, start if only_new else 0 : end])
        out, state = layer(rows[:, start:end], mask=mask, state=state)
        found.append(out)
        start = end
    assert start == rows.shape[1], "the steps cover the sequence"
    return torch.cat(found, 1), state
