"""The judge: what each reader must say after a kill, from a run nobody touched and the bytes on the disk.

Nothing of regard's own reading is used: checkpoints are hashed here, and the best of them follows from the lines of
metrics of the untouched run.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

ONE_LINE = re.compile(r"\Aregard \w+: [^\n]+\n?\Z")


class Reference:
    """The run nobody touched, with every checkpoint, and what each reader says of each of them."""

    def __init__(self, run: Path, answers: dict[int, dict[str, Any]], outcome: dict[str, Any]) -> None:
        self.run, self.answers, self.outcome = run, answers, outcome
        self.rows = lines(run)
        self.final = max(answers)

    def best(self, newest: int) -> int:
        """The step of the best validation up to a step: the lower loss, among equals the earlier."""
        judged = [(row["validation"]["loss"], row["step"]) for row in self.rows if "validation" in row]
        seen = [pair for pair in judged if pair[1] <= newest]
        return min(seen)[1] if seen else newest


def lines(run: Path) -> list[dict[str, Any]]:
    """The rows of metrics, without what a clock said."""
    path = run / "metrics.jsonl"
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in ("seconds", "steps_per_second")} for row in found]


def newest_whole(run: Path) -> int | None:
    """The step of the newest checkpoint all of whose files are what its manifest says."""
    places = run / "checkpoints"
    steps = {}
    for path in places.iterdir() if places.is_dir() else ():
        if found := re.fullmatch(r"(\.old-)?step-(\d+)", path.name):
            if found[1] and (places / path.name.removeprefix(".old-")).exists():
                continue
            steps[int(found[2])] = path
    for step in sorted(steps, reverse=True):
        if _whole(steps[step]):
            return step
    return None


def _whole(path: Path) -> bool:
    try:
        files = json.loads((path / "manifest.json").read_bytes())["files"]
        return all(hashlib.sha256((path / f).read_bytes()).hexdigest() == told["sha256"] for f, told in files.items())
    except (OSError, ValueError, KeyError):
        return False


def readers(found: dict[str, Any], newest: int | None, reference: Reference, *, strict: bool = True) -> list[str]:
    """What is wrong with the readers' answers; `strict`: an answer must come where there is a whole checkpoint."""
    wrong = []
    for name, said in found.items():
        if said["code"] in (1, 2) and "Traceback" not in said["err"] and said["err"].strip():
            if newest is not None and strict:
                wrong.append(f"{name} refused: {said['err'].strip()[-200:]}")
            continue
        if said["code"] != 0:
            wrong.append(f"{name} ended with {said['code']}: {said['err'].strip()[-300:]}")
        elif newest is None:
            wrong.append(f"{name} answered, but there is no whole checkpoint")
        elif said["answer"] not in _allowed(name, newest, reference, strict):
            wrong.append(f"{name} did not answer from step {reference.best(newest)} (newest whole: {newest})")
    return wrong


def _allowed(name: str, newest: int, reference: Reference, strict: bool) -> list[Any]:
    steps = {reference.best(newest)} if strict else {reference.best(newest), newest}
    return [reference.answers[step][name] for step in steps if step in reference.answers]


def ended(run: Path, reference: Reference) -> list[str]:
    """What differs between a run that came to its end and the one nobody touched."""
    last = f"checkpoints/step-{reference.final:08d}"
    wrong = []
    for file in ("model", "optimizer", "random"):
        try:
            ours, theirs = (load_file(place / last / f"{file}.safetensors") for place in (run, reference.run))
        except OSError as trouble:
            return [f"no last checkpoint: {trouble}"]
        if ours.keys() != theirs.keys() or any(not bool((ours[k] == theirs[k]).all()) for k in ours):
            wrong.append(f"{file} differs")
    try:
        same = lines(run) == reference.rows
    except ValueError:  # no JSON
        same = False
    if not same:
        wrong.append("metrics differ")
    left = [path.name for path in (run / "checkpoints").iterdir() if path.name.startswith(".")]
    return wrong + ([f"left over: {left}"] if left else [])


def trial(
    found: dict[str, Any], base: Path, newest: int | None, reference: Reference, strict: bool = True
) -> list[str]:
    """Everything that is wrong with one trial."""
    wrong = [f"before: {words}" for words in readers(found["before"], newest, reference, strict=strict)]
    resume, compared = found["resume"], found["compare"]
    told = "damaged" in resume["err"] or "not what was written" in resume["err"]
    if resume["code"] == 0:
        wrong += [f"resume: {words}" for words in ended(base / "copy", reference) if strict or "metrics" not in words]
    elif "Traceback" in resume["err"] or resume["code"] not in (1, 2) or strict:
        wrong.append(f"resume ended with {resume['code']}: {resume['err'].strip()[-300:]}")
    if strict and told:
        wrong.append(f"resume speaks of damage: {resume['err'].strip()[-200:]}")
    if compared["error"]:
        if strict or not compared["error"].strip():
            wrong.append(f"compare failed: {compared['error'][-300:]}")
        return wrong
    for name, value in reference.outcome.items():
        if compared[name] != value:
            wrong.append(f"compare: {name} is {compared[name]}, not {value}")
    after = readers(found["after"], reference.final, reference, strict=strict)
    return wrong + [f"after: {words}" for words in after]
