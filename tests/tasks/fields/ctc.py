"""Targets not aligned with inputs: connectionist temporal classification, judged by the rate of wrong symbols."""

import random
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from regard_workbench.tasks import Answer, Batch, Counts, Head, Recipe, Task, Vectors, task
from regard_workbench.tasks.measures.metrics import LOSS
from regard_workbench.tasks.parts.padding import padded

SYMBOLS, WIDTH = 6, 8  # symbol 0 is the blank
PATTERNS = torch.randn(SYMBOLS, WIDTH, generator=torch.Generator().manual_seed(3))


@dataclass(frozen=True)
class Ctc(Answer):
    """A sequence of symbols, shorter than the input (Graves et al. 2006)."""

    count: int
    needs = "rows"
    words = "a sequence that is not aligned with the input"
    terms = "sequences"

    @property
    def outputs(self):
        return self.count

    def head(self, dim=None, tied=None):
        return CtcHead(self.count, dim)


class CtcHead(Head):
    """Symbols or blanks at every position; repeated ones and blanks collapse."""

    def loss(self, outputs, batch, smoothing=0.0):
        odds = outputs.float().log_softmax(-1).transpose(0, 1)
        frames, symbols = lengths(batch.inputs, batch.keep), lengths(batch.targets, batch.target_keep)
        each = F.ctc_loss(odds, batch.targets, frames, symbols, reduction="none", zero_infinity=True)
        return each.sum(), torch.tensor(float(len(each)), device=each.device)

    def predict(self, outputs, batch):
        found = []
        for row, frames in zip(outputs.argmax(-1).tolist(), lengths(batch.inputs, batch.keep).tolist(), strict=True):
            row = row[:frames]
            found.append([s for i, s in enumerate(row) if s and (i == 0 or s != row[i - 1])])
        return found


def lengths(data, keep):
    return torch.full((len(data),), data.shape[1]) if keep is None else keep.sum(1).cpu()


def distance(one, other):
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        before, row[0] = row[0], i
        for j, b in enumerate(other, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (a != b))
    return row[-1]


def _errors(answered):
    batch, found = answered.batch, {"wrong": 0, "symbols": 0}
    for said, gold, count in zip(
        answered.predicted, batch.targets.tolist(), lengths(batch.targets, batch.target_keep).tolist(), strict=True
    ):
        found["wrong"] += distance(said, gold[:count])
        found["symbols"] += count
    return found


WER = Counts(
    "wer",
    higher_is_better=False,
    unit="share",
    look=_errors,
    total="symbols",
    over="symbols",
    made=lambda counts: counts["wrong"] / max(1.0, counts["symbols"]),
)


@task("test-ctc")
class Spelling(Task):
    """Reads symbols, each of them stretched over a few noisy frames."""

    metric = WER
    recipe = Recipe(model="encoder(dim=24, layers=1, dropout=0.0)", steps=150, batch_size=32, lr=6e-3)

    def streams(self):
        return {"inputs": Vectors(WIDTH, length=40)}

    def answers(self):
        return [Ctc(SYMBOLS)]

    def metrics(self):
        return (LOSS, WER)

    def examples(self, split):
        draw, found = random.Random(split), []
        for _ in range(800 if split == "train" else 100):
            spelt = [draw.randrange(1, SYMBOLS) for _ in range(draw.randrange(2, 6))]
            found.append((spelt, [f for s in spelt for f in [s] * draw.randrange(2, 6) + [0] * draw.randrange(1, 3)]))
        return found

    def length(self, example):
        return len(example[1])

    def collate(self, examples, generator):
        frames, keep = padded([frames for _, frames in examples], 0)
        sound = PATTERNS[frames] + 0.4 * torch.randn(*frames.shape, WIDTH, generator=generator)
        return Batch.of(sound, keep, *padded([spelt for spelt, _ in examples], 0))
