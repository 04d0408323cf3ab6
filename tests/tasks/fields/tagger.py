"""A tagger whose head has parameters of its own: a conditional random field over BIO tags, judged by entity F1."""

import random
from dataclasses import dataclass

import torch
from torch import nn

from regard_workbench.tasks import Answer, Batch, Counts, Head, Recipe, Task, Tokens, task
from regard_workbench.tasks.measures.metrics import LOSS
from regard_workbench.tasks.parts.padding import padded

TAGS = ("O", "B", "I")
WORDS = 6  # 1 opens a name, 2 goes on with one, 3 opens one after an even word


@dataclass(frozen=True)
class Tags(Answer):
    """A tag for each position, the best sequence of them as a whole."""

    count: int
    needs = "rows"
    words = "a tag for each position, chosen together"
    terms = "sentences"

    @property
    def outputs(self):
        return self.count

    def head(self, dim=None, tied=None):
        return CRF(self.count, dim)


class CRF(Head):
    """Emissions from the rows, and weights for each pair of neighbouring tags (Lafferty et al. 2001)."""

    def __init__(self, tags, dim):
        super().__init__(tags, dim)
        self.transition = nn.Parameter(torch.zeros(tags, tags))  # from, to

    def loss(self, outputs, batch, smoothing=0.0):
        scores, gold, keep = outputs.float(), batch.targets, kept(batch)
        alpha, path = scores[:, 0], scores[:, 0].gather(1, gold[:, :1])[:, 0]
        for t in range(1, scores.shape[1]):
            step = torch.logsumexp(alpha[:, :, None] + self.transition, 1) + scores[:, t]
            alpha = torch.where(keep[:, t, None], step, alpha)
            emitted = scores[:, t].gather(1, gold[:, t, None])[:, 0]
            path = path + (self.transition[gold[:, t - 1], gold[:, t]] + emitted) * keep[:, t]
        return (torch.logsumexp(alpha, 1) - path).sum(), torch.tensor(float(len(gold)), device=scores.device)

    def predict(self, outputs, batch):
        found = []
        for row, length in zip(outputs.float(), kept(batch).sum(1).tolist(), strict=True):
            best, back = row[0], []
            for t in range(1, length):
                value, where = (best[:, None] + self.transition).max(0)
                best = value + row[t]
                back.append(where)
            found.append([int(best.argmax())])
            for where in reversed(back):
                found[-1].insert(0, int(where[found[-1][0]]))
        return found


def kept(batch):
    return torch.ones_like(batch.targets).bool() if batch.target_keep is None else batch.target_keep


def entities(tags):
    starts = [i for i, tag in enumerate(tags) if TAGS[tag] == "B"]
    ends = [next((j for j in range(i + 1, len(tags)) if TAGS[tags[j]] != "I"), len(tags)) for i in starts]
    return set(zip(starts, ends, strict=True))


def _overlap(answered):
    found, batch = {"right": 0, "guessed": 0, "true": 0}, answered.batch
    for tags, gold, real in zip(answered.predicted, batch.targets, kept(batch), strict=True):
        ours, theirs = entities(tags), entities(gold[real].tolist())
        for name, some in (("right", ours & theirs), ("guessed", ours), ("true", theirs)):
            found[name] += len(some)
    return found


def _f1(counts):
    return 2 * counts["right"] / max(1, counts["guessed"] + counts["true"])


F1 = Counts("f1", unit="share", look=_overlap, total="true", over="entities", made=_f1)


@task("test-tagger")
class Tagger(Task):
    """Finds names in sentences of made-up words."""

    metric = F1
    recipe = Recipe(model="encoder(dim=24, layers=1, dropout=0.0)", steps=120, batch_size=32, lr=5e-3)

    def streams(self):
        return {"inputs": Tokens(WORDS, length=13)}

    def answers(self):
        return [Tags(len(TAGS))]

    def metrics(self):
        return (LOSS, F1)

    def examples(self, split):
        draw, found = random.Random(split), []
        for _ in range(1000 if split == "train" else 150):
            words, tags = [draw.choice([1, 2, 2, 3, 4, 5]) for _ in range(draw.randrange(3, 14))], []
            for i, word in enumerate(words):
                opens = word == 1 or (word == 3 and i > 0 and words[i - 1] % 2 == 0)
                tags.append(1 if opens else 2 if word == 2 and tags and tags[-1] else 0)
            found.append((words, tags))
        return found

    def collate(self, examples, generator):
        words, keep = padded([words for words, _ in examples], 0)
        tags, _ = padded([tags for _, tags in examples], 0)
        return Batch.of(words, keep, tags, keep)
