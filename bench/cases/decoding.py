"""The gain of a cache in decoding: each token is computed once, against recomputing the prefix for each token."""

from __future__ import annotations

import torch

from regard_workbench import models
from regard_workbench.bench.case import Measurement, Setting, case
from regard_workbench.bench.timing import speedup
from regard_workbench.tasks.answers import NextToken
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.streams import Tokens

LAYERS, DIM, WRITTEN, VOCABULARY = 4, 128, 512, 256
WORK = f"{WRITTEN} tokens written greedily, decoder, {LAYERS} layers, {DIM} wide, "
PEER = "the same without a cache"


@case("decode-cache", work=WORK + "batch 4", peer=PEER, unit="× faster", at_least=5)
def cache(setting: Setting) -> Measurement:
    """A small batch."""
    return _compared(setting, 4)


@case("decode-cache-single", work=WORK + "batch 1", peer=PEER, unit="× faster", at_least=5)
def single(setting: Setting) -> Measurement:
    """One sequence alone, for which calling the layers costs more than their arithmetic."""
    return _compared(setting, 1)


def _compared(setting: Setting, batch: int) -> Measurement:
    """The same tokens from the same model; only what is remembered differs."""
    torch.manual_seed(0)
    problem = Problem.of(Tokens(VOCABULARY, length=WRITTEN + 1), NextToken(VOCABULARY))
    decoder = models.build(f"decoder(layers={LAYERS}, dim={DIM})", problem).to(setting.device).eval()
    prompts = Batch.of(torch.arange(batch, device=setting.device)[:, None])

    def written(cached: bool) -> list[list[int]]:
        return [found[0].tokens for found in decoder.generate(prompts, max_length=WRITTEN, cached=cached)]

    assert written(True) == written(False), "the cache changed what is written"
    return speedup(lambda: written(True), lambda: written(False), setting, "cache")
