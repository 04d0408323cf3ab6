"""Small classifiers with known answers: of texts, by a hand-made table of vectors; of pictures, by an encoder."""

import torch

from regard_workbench import models, tasks
from regard_workbench.attacks.lexicon import Lexicon
from regard_workbench.attacks.target import Target
from regard_workbench.models import Model
from regard_workbench.tasks import Batch, OneOf
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.streams import Tokens

WORDS = ["good", "fine", "bad", "poor", "the", "a", "film", "plot"]
FIRST = 5  # ids before it are special
VECTORS = [[2, 0.5], [1.2, 0.6], [-2, 0.6], [-0.5, 0.6], [0, 1], [0.1, 1], [0, -1], [0.2, -1]]


class Sentiment(Model):
    """The sum of the first numbers of a text's vectors decides: class 1 where it is positive."""

    name = "sentiment"

    def __init__(self):
        super().__init__(Problem.of(Tokens(FIRST + len(WORDS)), OneOf(2)))
        self.embedding = torch.nn.Module()
        self.embedding.rows = torch.nn.Embedding(FIRST + len(WORDS), 2)
        with torch.no_grad():
            self.embedding.rows.weight.zero_()
            self.embedding.rows.weight[FIRST:] = torch.tensor(VECTORS)
        self.head = self.problem.answer.head()

    def forward(self, batch):
        rows = self.embedding.rows(batch.inputs)
        if batch.keep is not None:
            rows = rows.masked_fill(~batch.keep[..., None], 0)
        total = rows[..., 0].sum(1)
        return self.head(torch.stack([-total, total], 1), batch)


def ids(*texts):
    """Texts as ids, and where they are real."""
    numbers = [[FIRST + WORDS.index(word) for word in text.split()] for text in texts]
    longest = max(map(len, numbers))
    padded = torch.tensor([row + [0] * (longest - len(row)) for row in numbers])
    return padded, padded > 0


def texts(inputs, keep):
    return [
        " ".join(WORDS[number - FIRST] for number in row[real].tolist()) for row, real in zip(inputs, keep, strict=True)
    ]


def sentiment(*written, labels):
    """A target of these texts, and the words that may replace theirs."""
    model = Sentiment().eval()
    inputs, keep = ids(*written)
    rows = torch.arange(FIRST, FIRST + len(WORDS))
    lexicon = Lexicon(WORDS, rows, model.embedding.rows(rows).detach())
    return Target.of(model, Batch.of(inputs, keep, torch.tensor(labels))), lexicon


def digits(order="rows", model="encoder(dim=8, layers=2, num_heads=2)", count=11, seed=1):
    """An untrained classifier of digits on some of them, all of which it is taken to have right."""
    task = tasks.build(f"digits(order={order})")
    torch.manual_seed(seed)
    made = models.build(model, task.problem).eval()
    batch = task.collate(task.examples("test")[:count], torch.Generator())
    with torch.no_grad():
        labels = made(batch).argmax(1)
    return task, Target.of(made, batch.answered(labels))
