"""A graph: nodes and edges, the mask is the edges; training, validation and test are sets of nodes of one graph."""

import torch

from regard_workbench.tasks import Batch, EachOf, Nodes, Recipe, Stream, Task, task
from regard_workbench.tasks.measures.metrics import ACCURACY, LOSS

NODES, CLASSES, WIDTH = 200, 3, 8
SPLIT = {"train": slice(0, 100), "validation": slice(100, 150), "test": slice(150, NODES)}


@task("test-graph")
class Citations(Task):
    """Says to which of three communities a node belongs; its own features tell little, its neighbours' a lot."""

    recipe = Recipe(model="encoder(dim=16, layers=2, dropout=0.2)", steps=60, batch_size=100, lr=1e-2)

    def __init__(self, seed: int = 0):
        draw = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(CLASSES, (NODES,), generator=draw)
        same = self.labels[:, None] == self.labels[None]
        linked = torch.rand(NODES, NODES, generator=draw) < torch.where(same, 0.08, 0.004)
        self.edges = (linked | linked.T).nonzero().T  # (2,e), both directions
        centers = torch.randn(CLASSES, WIDTH, generator=draw)
        self.features = centers[self.labels] * 0.5 + torch.randn(NODES, WIDTH, generator=draw)

    def streams(self):
        return {"nodes": Nodes(WIDTH, NODES)}

    def answers(self):
        return [EachOf(CLASSES)]

    def metrics(self):
        return (LOSS, ACCURACY)

    def examples(self, split):
        return range(NODES)[SPLIT[split]]

    def length(self, example):
        return 1

    def collate(self, examples, generator):
        """The whole graph, always; only the chosen nodes count."""
        asked = torch.zeros(1, NODES, dtype=torch.bool)
        asked[0, list(examples)] = True
        nodes = Stream(self.features[None], edges=self.edges)
        return Batch({"nodes": nodes}, {"label": Stream(self.labels[None], asked)})
