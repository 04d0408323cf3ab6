"""Ranking metrics per user: the place of the item that a user took next, among all items."""

import random

import torch

from regard_workbench.tasks import Batch, Mean, NextToken, Recipe, Task, Tokens, task
from regard_workbench.tasks.measures.metrics import LOSS
from regard_workbench.tasks.parts.padding import padded

ITEMS, TOP = 30, 5


def ranks(answered):
    """The rank of each user's held-out item, from 1: how many items score at least as high, itself included."""
    keep = answered.batch.target_keep
    last = keep.sum(1) - 1 if keep is not None else torch.full((answered.batch.size,), answered.outputs.shape[1] - 1)
    rows = torch.arange(len(last), device=answered.outputs.device)
    scores = answered.outputs[rows, last.to(rows.device)]
    own = scores.gather(1, answered.batch.targets[rows, last.to(rows.device)][:, None])
    return (scores >= own).sum(1).double()


def _hits(answered):
    found = answered.once(ranks)
    return float((found <= TOP).sum()), float(len(found))


def _gains(answered):
    found = answered.once(ranks)
    return float(torch.where(found <= TOP, 1 / torch.log2(found + 1), 0.0).sum()), float(len(found))


HIT = Mean("hit_at_5", unit="share", over="users", look=_hits)
NDCG = Mean("ndcg_at_5", over="users", look=_gains)


@task("test-ranking")
class Recommend(Task):
    """Users walk through a shop whose items have successors; which one do they take next?"""

    metric = NDCG
    recipe = Recipe(model="decoder(dim=24, layers=1, dropout=0.0)", steps=100, batch_size=32, lr=6e-3)

    def streams(self):
        return {"inputs": Tokens(ITEMS, length=12)}

    def answers(self):
        return [NextToken(ITEMS)]

    def metrics(self):
        return (LOSS, NDCG, HIT)

    def examples(self, split):
        draw, found = random.Random(split), []
        for _ in range(500 if split == "train" else 80):
            walk = [draw.randrange(1, ITEMS)]
            while len(walk) < draw.randrange(6, 13):
                walk.append(1 + (walk[-1] * 7 + draw.randrange(2)) % (ITEMS - 1))
            found.append(walk)
        return found

    def collate(self, examples, generator):
        inputs, keep = padded([walk[:-1] for walk in examples], 0)
        return Batch.of(inputs, keep, padded([walk[1:] for walk in examples], 0)[0], keep)
