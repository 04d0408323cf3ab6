"""Models for tests of tasks: what they answer is known in advance."""

import torch

from regard.decoding import Hypothesis
from regard_workbench.tasks import Answered
from regard_workbench.tasks.measures.metrics import merged, observe, values


class Fixed:
    """Answers from a rule on batches; writes texts that are given."""

    def __init__(self, outputs, written=None):
        self.outputs, self.written = outputs, written
        self.asked = []

    def __call__(self, batch):
        return self.outputs(batch)

    def loss(self, outputs, batch, smoothing=0.0):
        return self.head.loss(outputs, batch, smoothing)

    def predict(self, outputs, batch):
        return self.head.predict(outputs, batch)

    def generate(self, batch, **options):
        self.asked.append(batch)
        return [[Hypothesis(list(tokens), 0.0)] for tokens in self.written(batch)]


def judged(task, model, *batches):
    """The metrics of a task for what a model answers to some batches."""
    models = model if isinstance(model, list) else [model] * len(batches)
    parts = []
    for one, batch in zip(models, batches, strict=True):
        one.head = task.problem.answer.head()
        parts.append(observe(task.metrics(), Answered(one, batch)))
    return values(task.metrics(), merged(task.metrics(), parts))


def certain(targets, count, sharpness=10.0):
    """Logits that are sure of the targets."""
    return torch.nn.functional.one_hot(targets, count).float() * sharpness


def rows_of(batch):
    """The real ids of each row of a batch."""
    keep = torch.ones_like(batch.inputs, dtype=torch.bool) if batch.keep is None else batch.keep
    return [row[kept].tolist() for row, kept in zip(batch.inputs, keep, strict=True)]
