"""A comparison that nobody ran: outcomes, costs and the metrics of each run, made by a formula."""

import json
import math

from regard_workbench.comparison.comparison import Comparison
from regard_workbench.comparison.job import Contestant, Cost, Outcome

MODELS = ("static-transformer", "dynamic-transformer", "lstm-attention")
ATTENTIONS = (
    "additive",
    "causal",
    "concat",
    "dot",
    "general",
    "global",
    "global-layer",
    "global-query",
    "hard",
    "key-value-memory",
    "linear",
    "local(window=9)",
    "local-layer(window=9)",
    "local-m(window=9)",
    "local-p(window=9)",
    "multihead",
    "query-key-memory",
    "relative",
)


def accuracy(place, seed):
    """What the contestant at a place reaches with a seed: all different, never in a straight line."""
    return 0.9 - 0.013 * place + 0.004 * math.sin(1 + 7 * seed + 3 * place)


def records(place, seed, steps):
    """The lines of a run's metrics.jsonl."""
    found = []
    for step in range(1, steps + 1):
        loss = 2.5 / (1 + 0.1 * step) + 0.01 * place
        line = {"step": step, "loss": loss, "seconds": step * (1 + place) / 10, "tokens": 64 * step}
        if step % 10 == 0:
            reached = accuracy(place, seed) * step / steps
            line["validation"] = {"loss": 1 - reached, "accuracy": reached}
        found.append(line)
    return found


def outcome(folder, place, contestant, seed, error="", steps=50, blocks=20):
    """A run and its folder."""
    folder.mkdir(parents=True)
    lines = [] if error else records(place, seed, steps)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = {"task": "digits", "model": contestant.model, "seed": seed, "steps": steps}
    common = {
        "model": contestant.model,
        "attention": contestant.attention,
        "seed": seed,
        "settings": settings,
        "folder": str(folder),
        "command": f"regard train digits --model '{contestant.model}' --seed {seed}",
    }
    if error:
        return Outcome(**common, error=error)
    reached = accuracy(place, seed)
    shares = [min(1.0, max(0.0, reached + 0.05 * math.sin(place + seed + 5 * block))) for block in range(blocks)]
    return Outcome(
        **common,
        steps=steps,
        seconds=steps * (1 + place) / 10,
        stopped_by="steps",
        parameters=1000 * (place + 2) + 7,
        metric="accuracy",
        validation={"loss": 1.03 - reached, "accuracy": reached + 0.001},
        test={"loss": 1.05 - reached, "accuracy": sum(shares) / blocks},
        best_step=steps,
        blocks=[{"accuracy": [share * 10, 10.0]} for share in shares],
        data_sha256="0123456789abcdef" * 4,
        versions={"regard": "0.1.0", "torch": "2.13.0", "python": "3.11.7", "device": "cpu"},
    )


def made(folder, count=3, seeds=3, *, failed=(), costs=True):
    """`count` contestants × `seeds`; `failed` are pairs of place and seed."""
    if count <= len(MODELS):
        contestants = [Contestant(model) for model in MODELS[:count]]
    else:
        contestants = [Contestant("encoder", attention) for attention in ATTENTIONS[:count]]
    outcomes = [
        outcome(
            folder / f"run-{place}-{seed}",
            place,
            contestant,
            seed,
            "RuntimeError: it ran out of luck" if (place, seed) in failed else "",
        )
        for place, contestant in enumerate(contestants)
        for seed in range(seeds)
    ]
    known = {
        contestant.label: Cost(31.5 / (1 + place), 20.25 + 3 * (place % 5), 1.5e9 * (1 + place), 1000 * (place + 2) + 7)
        for place, contestant in enumerate(contestants)
        if any(not run.error and run.model == contestant.model for run in outcomes)
    }
    return Comparison(
        task="digits",
        settings={"task": "digits", "steps": 50},
        contestants=contestants,
        seeds=list(range(seeds)),
        outcomes=outcomes,
        costs=known if costs else {},
        left_out=[("ntm", "it gives past, and this task needs pooled")],
        budget="50 steps",
        command="regard compare digits --steps 50",
        out=folder,
    )
