"""Choose a run and its length penalty by validation BLEU, then translate the test split once.

    python -m benchmarks.decodings runs/wide runs/narrow --beam 5 --device cuda

Every run translates all validation sentences by beam search. The texts that are left in the beam are ranked anew for
each penalty, which costs nothing. Only the run that is best, with its penalty, then reads the test split.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import torch

from regard.errors import BadValue, RegardError
from regard_workbench.comparison.evaluate import evaluate_run
from regard_workbench.tasks.measures.bleu import Bleu
from regard_workbench.tasks.text.parallel import REFERENCES
from regard_workbench.tasks.translate import Translate
from regard_workbench.training.data import generator
from regard_workbench.training.loading import load

PENALTIES = (0.0, 0.4, 0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0)
SENTENCES = 10**9  # of the validation split: all


@torch.no_grad()
def validation_scores(run: str, beam: int, device: str, limit: int | None = None) -> dict[float, float]:
    """BLEU on the validation sentences for each penalty."""
    loaded = load(run, device=device)
    task, model = loaded.task, loaded.model
    if not isinstance(task, Translate):
        raise BadValue(f"run: expected a translation, {run} is a run of {task.name}.")
    task.bleu_examples = SENTENCES  # a run may have written only some of them for speed
    examples = task.examples("validation")
    count = len(examples) if limit is None else min(limit, len(examples))
    written: dict[float, list[str]] = {penalty: [] for penalty in PENALTIES}
    references: list[str] = []
    for begin in range(0, count, size := loaded.config.batch_size or 32):
        chosen = range(begin, min(begin + size, count))
        batch = task.batch(examples, chosen, generator(0, "validation", begin)).to(loaded.device)
        references += batch.notes[REFERENCES]
        options: dict[str, Any] = {**task.problem.answer.decoding(beam), "length_penalty": 1.0, "n_best": beam}
        for found in model.generate(batch, **options):
            for penalty in PENALTIES:
                # A score is the log-probability over the length; this makes it one over length to another power.
                best = max(found, key=lambda one: one.score * len(one.tokens) ** (1.0 - penalty))
                written[penalty].append(task.decode(best.tokens))
    bleu = Bleu(task.bleu_tokenize)
    return {penalty: bleu.score(bleu.counts(texts, references)) for penalty, texts in written.items()}


def main() -> None:
    """Read the command line, choose, and print both as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", help="folders of translation runs")
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--limit", type=int, help="only so many sentences, to try the command")
    given = parser.parse_args()
    scores = {}
    for run in given.runs:
        try:
            scores[run] = validation_scores(run, given.beam, given.device, given.limit)
        except RegardError as trouble:  # a run that was stopped early must not cost the others
            print(f"left out: {run}: {trouble}", file=sys.stderr)
    if not scores:
        raise SystemExit("runs: none of them can be measured.")
    run, penalty = max(
        ((run, penalty) for run, found in scores.items() for penalty in found), key=lambda one: scores[one[0]][one[1]]
    )
    chosen = {"run": run, "beam": given.beam, "length_penalty": penalty}
    print(json.dumps({"validation_bleu": scores, "chosen": chosen}), flush=True)
    found = evaluate_run(run, "test", beam=given.beam, length_penalty=penalty, device=given.device, limit=given.limit)
    print(json.dumps(found.to_dict(), ensure_ascii=False))


if __name__ == "__main__":
    main()
