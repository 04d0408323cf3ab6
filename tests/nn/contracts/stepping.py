"""Going through a sequence in steps, with the state handed from call to call."""

import torch

from regard import masks
from tests.nn.contracts.layers import PLAIN

# Queries one after another over one source. Left out: what counts a query's place from the source's end (promise 5:
# alone it stands elsewhere), and ntm, which writes the source of every call into its memory.
OVER_A_SOURCE = [case for case in PLAIN if case.name != "ntm" and not case.by_position]


def steps(layer, rows, sizes, state=None, keep=None, only_new=False):
    """The rows of every step joined, and the last state. `keep` (b,length) tells real positions from padding."""
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
