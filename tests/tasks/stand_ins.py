"""Models for tests of tasks: what they answer is known in advance."""

import torch

from regard.decoding import Hypothesis


class Fixed:
    """Answers from a rule on batches; writes texts that are given."""

    def __init__(self, outputs, written=None):
        self.outputs, self.written = outputs, written
        self.asked = []

    def __call__(self, batch):
        return self.outputs(batch)

    def generate(self, batch, **options):
        self.asked.append(batch)
        return [[Hypothesis(list(tokens), 0.0)] for tokens in self.written(batch)]


def certain(targets, count, sharpness=10.0):
    """Logits that are sure of the targets."""
    return torch.nn.functional.one_hot(targets, count).float() * sharpness


def rows_of(batch):
    """The real ids of each row of a batch."""
    keep = torch.ones_like(batch.inputs, dtype=torch.bool) if batch.keep is None else batch.keep
    return [row[kept].tolist() for row, kept in zip(batch.inputs, keep, strict=True)]
