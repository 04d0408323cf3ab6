"""BLEU as sacrebleu computes it, from counts of n-grams: they add up over batches, which BLEU does not."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regard.errors import BadValue, unknown_name

ORDERS = range(1, 5)  # of the n-grams


@dataclass(frozen=True)
class Bleu:
    """Corpus BLEU, 0 to 100; `tokenize`: how sacrebleu splits words."""

    tokenize: str = "13a"

    def counts(self, texts: Sequence[str], references: Sequence[str | Sequence[str]]) -> dict[str, float]:
        """The counts for texts with one reference each, or with several of which any may be met."""
        alternatives = [[reference] if isinstance(reference, str) else list(reference) for reference in references]
        # One stream for all first references, one for all second ones …; sacrebleu leaves out those that are None.
        streams = [list(stream) for stream in itertools.zip_longest(*alternatives)]
        score = self._made().corpus_score(list(texts), streams)
        counts: dict[str, float] = {"texts": len(texts), "system": score.sys_len, "reference": score.ref_len}
        for order, (right, total) in zip(ORDERS, zip(score.counts, score.totals, strict=True), strict=True):
            counts[f"right {order}"], counts[f"total {order}"] = right, total
        return counts

    def score(self, counts: Mapping[str, float], longest: int = ORDERS[-1]) -> float:
        """BLEU of counts that were added up, over n-grams of up to `longest` words."""
        if longest not in ORDERS:
            raise BadValue(f"longest: expected {ORDERS[0]} to {ORDERS[-1]}, got {longest}.")
        bleu, orders = self._made(), range(1, longest + 1)
        corpus_score = bleu.compute_bleu(
            [int(counts[f"right {order}"]) for order in orders],
            [int(counts[f"total {order}"]) for order in orders],
            int(counts["system"]),
            int(counts["reference"]),
            smooth_method=bleu.smooth_method,
            smooth_value=bleu.smooth_value,
            max_ngram_order=longest,
        )
        return float(corpus_score.score)

    def signature(self) -> str:
        """How it is computed, in sacrebleu's own words."""
        bleu = self._made()
        bleu.corpus_score(["a"], [["a"]])  # the number of references is known only after a score
        return str(bleu.get_signature())

    def _made(self) -> Any:
        from sacrebleu.metrics.bleu import BLEU

        if self.tokenize not in BLEU.TOKENIZERS:
            raise unknown_name("bleu_tokenize", self.tokenize, BLEU.TOKENIZERS)
        # Texts that are split into words on purpose need no warning that they are.
        return BLEU(tokenize=self.tokenize, force=self.tokenize == "none")
