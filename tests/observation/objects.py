"""Tensors that are alive, found among all objects of the process but those from before a test."""

import gc

import torch


def leave_out_older():
    """Leave what exists now out of every later look: other tests have left millions of objects, seconds of each look.

    They stay out of collections of garbage, as modules and tests do since the beginning (`tests/selection.py`).
    """
    gc.collect()
    gc.freeze()


def newer_tensors():
    """The tensors made since then that are alive."""
    gc.collect()
    return [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]
