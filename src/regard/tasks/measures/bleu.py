"""BLEU as sacrebleu computes it, from counts of n-grams: they add up over batches, which BLEU does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regard.errors import unknown_name

ORDERS = range(1, 5)  # of the n-grams


@dataclass(frozen=True)
class Bleu:
    """Corpus BLEU, 0 to 100; `tokenize`: how sacrebleu splits words."""

    tokenize: str = "13a"

    def counts(self, texts: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        """The counts for texts and one reference each."""
        score = self._made().corpus_score(list(texts), [list(references)])
        found: dict[str, float] = {"texts": len(texts), "system": score.sys_len, "reference": score.ref_len}
        for order, (right, total) in zip(ORDERS, zip(score.counts, score.totals, strict=True), strict=True):
            found[f"right {order}"], found[f"total {order}"] = right, total
        return found

    def score(self, counts: Mapping[str, float]) -> float:
        """BLEU of counts that were added up."""
        bleu = self._made()
        made = bleu.compute_bleu(
            [int(counts[f"right {order}"]) for order in ORDERS],
            [int(counts[f"total {order}"]) for order in ORDERS],
            int(counts["system"]),
            int(counts["reference"]),
            smooth_method=bleu.smooth_method,
            smooth_value=bleu.smooth_value,
        )
        return float(made.score)

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
