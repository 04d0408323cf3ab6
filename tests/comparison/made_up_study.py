"""Folders of comparisons that nobody ran, as `regard compare` leaves them: outcomes of runs, and what a step costs."""

import dataclasses
import json
import math

from studying.evidence import Margin, Question, read_comparison
from studying.text import check, findings, negative
from studying.verdict import judge

from regard_workbench.comparison.job import Contestant, Cost
from tests.comparison import made_up

BLOCKS, IN_A_BLOCK = 40, 50


def outcome(folder, contestant, seed, value, *, task="digits", metric="accuracy", steps=400, **changes):
    """A finished run whose blocks make the value; a share, bits, or a perplexity."""
    waves = [0.02 * math.sin(2 * math.pi * block / BLOCKS + seed) for block in range(BLOCKS)]
    base = math.log(value) if metric == "perplexity" else value
    blocks = [{metric: [(base + wave) * IN_A_BLOCK, float(IN_A_BLOCK)]} for wave in waves]
    settings = {
        "task": task,
        "model": contestant.model,
        "attention": contestant.attention,
        "seed": seed,
        "steps": steps,
    }
    settings = {name: found for name, found in settings.items() if found is not None}
    return made_up.outcome(
        contestant.model,
        seed,
        value,
        contestant.attention,
        **{
            "settings": settings,
            "folder": str(folder),
            "steps": steps,
            "parameters": 12345,
            "metric": metric,
            "higher_is_better": metric not in ("perplexity", "bits_per_sequence"),
            "validation": {metric: value},
            "test": {metric: value},
            "best_step": steps,
            "blocks": blocks,
            **changes,
        },
    )


def folder(out, reached, speeds, *, model="encoder", **how):
    """A comparison in a folder: `reached` has for an attention (with model=None: a model) a number for each seed."""
    costs = {}
    for name, values in reached.items():
        contestant = Contestant(name) if model is None else Contestant(model, name)
        for seed, value in enumerate(values):
            place = out / "runs" / f"{name}-seed-{seed}"
            place.mkdir(parents=True)
            found = outcome(place, contestant, seed, value, **how)
            found.save()
        if name in speeds:
            cost = Cost(speeds[name], 20.0 + len(name), 1e9 / speeds[name], 12345, {}, "cpu")
            costs[json.dumps([found.settings, 1], sort_keys=True)] = dataclasses.asdict(cost)
    (out / "costs.json").write_text(json.dumps(costs))
    return out


def question(name="digits-attention", **changes):
    given = {
        "title": "Recognise a digit: which attention",
        "job": "classify",
        "asks": "Which?",
        "margin": Margin(0.01, "1 point"),
        "words": "digits --models encoder --attention dot,hard --seeds 3 --steps 400",
        "story": "A story.",
    }
    return Question(name=name, **{**given, **changes})


def verdict_of(tmp_path, reached, speeds, yards=(), margin=None, **how):
    place = folder(tmp_path / "one", reached, speeds, **how)
    asked = question() if margin is None else question(margin=margin)
    return judge(asked, read_comparison(place, "regard compare"), yards)


CLEAR = {"dot": (0.95, 0.96, 0.97), "hard": (0.55, 0.561, 0.57)}  # 0.4 apart, scatter of the difference 0.0006


def told(found):
    return " ".join([*findings(found), *negative(found), *check(found)])
