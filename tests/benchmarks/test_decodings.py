"""Length penalties are chosen among all texts of the beam, not among copies of the best one."""

from types import SimpleNamespace

import torch

from benchmarks import decodings
from regard.decoding import Hypothesis
from regard_workbench import tasks

TEXTS = [f"{'der' if n % 2 else 'die'} {n} alte {'Hund' if n % 2 else 'Katze'} sieht ein Haus ." for n in range(41)]


def test_a_larger_penalty_prefers_the_longer_text_of_the_beam(tmp_path, monkeypatch):
    for name, size in (("train", 41), ("val", 7), ("test", 5)):
        for language in ("en", "de"):
            (tmp_path / f"{name}.{language}").write_text("".join(f"{line}\n" for line in TEXTS[:size]))
    task = tasks.build("translate", data=tmp_path, level="word")

    def generate(batch, beam, n_best=1, **_):
        """The reference with a log-probability of −9, and its first two words with −4."""
        found = []
        for pair in task.examples("validation")[len(found) : batch.size]:
            short, long = pair.target[:2], pair.target
            texts = [Hypothesis(short, -4 / len(short)), Hypothesis(long, -9 / len(long))]
            found.append(sorted(texts, key=lambda one: -one.score)[:n_best])
        return found

    run = SimpleNamespace(
        task=task,
        model=SimpleNamespace(generate=generate),
        device=torch.device("cpu"),
        config=SimpleNamespace(batch_size=7),
    )
    monkeypatch.setattr(decodings, "load", lambda *_, **__: run)
    scores = decodings.validation_scores("run", beam=5, device="cpu")
    assert scores[0.0] < scores[2.0] and scores[2.0] > 99.9
