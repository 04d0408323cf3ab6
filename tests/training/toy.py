"""A toy task and a toy model, registered as real ones are, small enough to train in milliseconds.

`python -m tests.training.toy train toy …` is the command line with both registered. `REGARD_TOY_SLOW` makes every
forward pass take that many seconds, so that a signal can arrive anywhere. `REGARD_TOY_PAUSE` (see `_pause`) pauses a
run at one batch until a test creates a file.
"""

import math
import os
import random
import sys
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from regard_workbench.models import Model, model
from regard_workbench.tasks import Batch, Head, Mean, OneOf, Recipe, Task, Tokens, task
from regard_workbench.tasks.measures.metrics import ACCURACY, LOSS

WORDS, CLASSES = 13, 3


@dataclass(frozen=True)
class Letter(OneOf):
    """One of three letters; the loss of a batch with the example `poison` is NaN."""

    poison: int = -1

    def head(self, dim=None, tied=None):
        return Poisoned(self.poison, self.classes, dim)


class Poisoned(Head):
    """Cross-entropy, and NaN for one example."""

    def __init__(self, poison, *sizes):
        super().__init__(*sizes)
        self.poison = poison

    def loss(self, outputs, batch, smoothing=0.0):
        total, count = super().loss(outputs, batch, smoothing)
        return (total * math.nan if self.poison in batch.index else total), count


NEVER = Mean("never", look=lambda answered: (math.nan, 1.0))
DRAWN = Mean("drawn", look=lambda answered: (float(torch.rand(())), 1.0))


class Toy(Task):
    """Which of three letters a ragged row of letters holds most often."""

    recipe = Recipe(model="toy-net", steps=12, batch_size=5, lr=1e-2, warmup=3)

    def __init__(self, size: int = 43, poison: int = -1, metric: str = "accuracy"):
        self.size, self.poison = size, poison
        known = {one.name: one for one in (LOSS, ACCURACY, NEVER, DRAWN)}
        self.metric = known.get(metric, Mean(metric))
        self.vocabulary = list(range(WORDS))

    def streams(self):
        return {"inputs": Tokens(len(self.vocabulary), length=11)}

    def answers(self):
        return [Letter(CLASSES, self.poison)]

    def metrics(self):
        return (LOSS, ACCURACY, NEVER, DRAWN)

    def examples(self, split):
        own = random.Random(f"{split}-{self.size}")
        rows = [[own.randrange(1, WORDS) for _ in range(own.randrange(3, 12))] for _ in range(self.size)]
        return [(row, max(range(CLASSES), key=row.count)) for row in rows]

    def length(self, example):
        return len(example[0])

    def collate(self, examples, generator):
        longest = max(len(row) for row, _ in examples)
        inputs = torch.zeros(len(examples), longest, dtype=torch.long)
        for number, (row, _) in enumerate(examples):
            inputs[number, : len(row)] = torch.tensor(row)
        noise = torch.rand(inputs.shape, generator=generator) < 0.05
        inputs = torch.where(noise & (inputs > 0), torch.ones_like(inputs), inputs)
        return Batch.of(inputs, inputs > 0, torch.tensor([label for _, label in examples]))

    def state(self):
        return {"vocabulary": self.vocabulary}

    def restore(self, state):
        self.vocabulary = list(state["vocabulary"])


class ToyNet(Model):
    """A bag of embeddings, noise from three random generators, a buffer that counts its calls, a shared matrix."""

    takes_attention = ""

    def __init__(self, problem, *, dim: int = 7, dropout: float = 0.2):
        super().__init__(problem)
        self.rows = nn.Embedding(problem.inputs.count, dim)
        self.norm = nn.LayerNorm(dim)
        self.mix = nn.Linear(dim, dim)
        self.again = nn.Linear(dim, dim, bias=False)
        self.again.weight = self.mix.weight
        self.drop = nn.Dropout(dropout)
        self.head = problem.answer.head(dim)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("drift", torch.zeros(dim))

    def forward(self, batch):
        time.sleep(float(os.environ.get("REGARD_TOY_SLOW", "0")))
        if self.training:
            _pause(int(self.calls), self.norm.normalized_shape[0])
        rows = self.rows(batch.inputs) * batch.keep[..., None].to(self.rows.weight.dtype)
        seen = self.norm(rows.sum(1) / batch.keep.sum(1, keepdim=True).to(rows.dtype))
        if self.training:
            seen = seen + 0.01 * random.random() + 0.01 * float(np.random.rand())
            self.calls += 1
            self.drift = 0.9 * self.drift + 0.1 * seen.detach().mean(0)
        seen = seen + self.drift
        return self.head(self.again(self.drop(torch.tanh(self.mix(seen)))), batch)


def _pause(calls, dim):
    """CALLS:DIM:FILE, joined by commas: after CALLS training batches, a model of width DIM waits for a file."""
    for told in filter(None, os.environ.get("REGARD_TOY_PAUSE", "").split(",")):
        at, width, file = told.split(":", 2)
        while (calls, dim) == (int(at), int(width)) and not os.path.exists(file):
            time.sleep(0.01)


def register():
    """Register task and model."""
    task("toy")(Toy)
    model("toy-net", gives=("pooled",))(ToyNet)


def weights(folder, name=None):
    """All tensors of a run's newest (or named) checkpoint, and its counters, which two equal runs have in common."""
    from regard_workbench.training.run_folder import checkpoints

    path = folder / "checkpoints"
    found = checkpoints.load(path / name if name else checkpoints.paths(path)[0])
    progress = {key: value for key, value in found.state["progress"].items() if key not in ("seconds", "pending")}
    return {**found.weights, **found.optimizer, **{f"random.{k}": v for k, v in found.random.items()}}, progress


def assert_same(one, other):
    """Bit for bit."""
    (left, at), (right, there) = weights(one), weights(other)
    assert at == there
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name


if __name__ == "__main__":
    from regard_workbench.cli.main import main

    register()
    torch.set_num_threads(1)
    sys.exit(main())
