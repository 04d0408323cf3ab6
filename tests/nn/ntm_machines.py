"""Small machines of every form, shared by the tests of the Neural Turing Machine."""

import pytest
import torch

from regard.nn import ntm

B, T, INPUTS, OUTPUTS = 3, 5, 4, 2
SMALL = {"slots": 7, "width": 3, "hidden": 6}

FORMS = {
    "one of each, lstm": {},
    "two read, three write": {"read_heads": 2, "write_heads": 3, "shift_range": 2},
    "feed-forward": {"controller": "feed-forward", "read_heads": 2, "write_heads": 2},
    "no read head": {"read_heads": 0, "controller": "feed-forward"},
    "no write head": {"write_heads": 0, "shift_range": 0},
    "learned": {"initial": "learned", "shift_range": 7},
}
by_form = pytest.mark.parametrize("form", FORMS)


def build(form="one of each, lstm", dtype=torch.float64, **options):
    """A machine whose weights are far from zero, so that every part affects the result."""
    torch.manual_seed(3)
    machine = ntm.Machine(INPUTS, OUTPUTS, **{**SMALL, **FORMS[form], **options}).to(dtype)
    with torch.no_grad():
        for parameter in machine.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return machine


def inputs(b=B, t=T, dtype=torch.float64):
    return torch.randn(b, t, INPUTS, dtype=dtype, generator=torch.Generator().manual_seed(5))
