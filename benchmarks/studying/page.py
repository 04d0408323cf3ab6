"""The whole page: the short answer, how it was done, a section for each question, and what it does not show."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path

from regard.comparison.grid import compose
from regard.nn.mechanism import MECHANISMS
from regard.registry import parse
from regard.training.run_folder import durable

from . import figure, prose, reading, yardsticks
from .question import Question
from .section import RACING, STRUCK, section
from .sentences import because, but, sure
from .verdict import Verdict, judge
from .wording import code, count, listed, value, wrapped

DATA = "../shared/data"  # as the commands on the page name it
IMAGES = "images"


def write(questions: Sequence[Question], home: Path, page: Path) -> None:
    """Write the page and its pictures, from the folders inside `home`."""
    verdicts = [verdict for question in questions if (verdict := _verdict(question, home))]
    if not verdicts:
        raise reading.Unreadable(f"{home}: no comparison there has a finished run.")
    images = page.parent / IMAGES
    images.mkdir(parents=True, exist_ok=True)
    sections = []
    for verdict in verdicts:
        name = f"study-{verdict.question.name}.svg"
        alt = figure.draw(verdict, images / name)
        sections.append(section(verdict, f"{IMAGES}/{name}", alt, DATA, home.as_posix()))
    parts = [
        prose.opening(verdicts),
        answers(verdicts),
        prose.method(verdicts),
        *sections,
        glance(verdicts),
        prose.limits(verdicts),
        prose.again(verdicts, [one for one in questions if one not in [each.question for each in verdicts]]),
    ]
    durable.replace(page, (wrapped("\n\n".join(part for part in parts if part)) + "\n").encode())


def _verdict(question: Question, home: Path) -> Verdict | None:
    folder = home / question.name
    try:
        comparison = reading.read(folder, question.shown(DATA, home.as_posix()))
    except reading.Unreadable as trouble:
        if (folder / "runs").is_dir() and any((folder / "runs").glob("*/outcome.json")):
            raise
        print(f"left out: {trouble}", file=sys.stderr)
        return None
    if wrong := question.contradicted(comparison.settings):
        raise reading.Unreadable(f"{folder}: {wrong}. Correct the list, or run it again.")
    left_out = _left_out(question, comparison.task)
    return judge(question, dataclasses.replace(comparison, left_out=left_out), yardsticks.read(folder))


def _left_out(question: Question, task: str) -> list[tuple[str, str]]:
    """Which mechanisms cannot take part where all were asked, and why: the library is asked again, without any data."""
    options = dict(zip(question.arguments, question.arguments[1:], strict=False))
    if options.get("--attention") != "all":
        return []
    found = compose({"task": task}, [options["--models"]], ["all"]).left_out
    return [(label.rpartition(" · ")[2], why) for label, why in found]


def answers(verdicts: Sequence[Verdict]) -> str:
    """What to take for which job."""
    lines = ["| job | take | because | certain? |", "| :-- | :-- | :-- | :-- |"]
    for verdict in verdicts:
        if verdict.take is None:
            lines.append(
                f"| {_link(verdict)} | nothing yet | nobody got beyond guessing within this budget | – |"
            )
        else:
            why = because(verdict) + but(verdict)
            lines.append(f"| {_link(verdict)} | {code(verdict.take.name)} | {why} | {sure(verdict)} |")
    parts = ["## The short answer", "\n".join(lines), tally(verdicts), everywhere(verdicts)]
    return "\n\n".join(part for part in parts if part)


def _link(verdict: Verdict) -> str:
    anchor = "".join(
        letter for letter in verdict.question.title.lower() if letter.isalnum() or letter in " -"
    )
    return f"[{verdict.question.job}](#{anchor.replace(' ', '-')})"


def everywhere(verdicts: Sequence[Verdict]) -> str:
    """Which mechanisms were good enough wherever they were tried, if there are any."""
    asked = [verdict for verdict in verdicts if "--attention" in verdict.question.arguments]
    if len(asked) < 2:
        return ""
    tried: dict[str, list[bool]] = {}
    for verdict in asked:
        for entry in verdict.everyone:
            for name in entry.names:
                tried.setdefault(parse(name)[0], []).append(entry in verdict.close)
    good = sorted(name for name, marks in tried.items() if len(marks) == len(asked) and all(marks))
    where = f"in {'both' if len(asked) == 2 else f'all {count(len(asked))}'} comparisons of attentions"
    if good:
        return f"If one default must do: {listed(good)} stayed in the race and within the margin of the best {where}."
    return f"No mechanism was in the race and within the margin of the best {where}."


def tally(verdicts: Sequence[Verdict]) -> str:
    """How often there is a clear winner, and how often something simpler does better."""
    clear = sum(len(verdict.racing) == 1 for verdict in verdicts)
    text = f"The tests name one winner in {count(clear)} of {count(len(verdicts))} jobs"
    text += "; elsewhere several may be the best." if clear < len(verdicts) else "."
    simple = [verdict for verdict in verdicts if any(not one.guess for one in verdict.yardsticks)]
    lost = [verdict for verdict in simple if any(not one.guess for one in verdict.unbeaten)]
    if lost:
        often = "each of these" if len(lost) == len(simple) else f"{count(len(lost))} of these"
        text += (
            f" For {count(len(simple))} of them an old and simple method was tried as well, and for {often} it "
            "does better than everything here: small models that learn from scratch for minutes are no match for it, "
            "and a table without it would flatter them."
        )
    return text


def glance(verdicts: Sequence[Verdict]) -> str:
    """Every mechanism that was tried, and how it fared in each comparison of attentions."""
    asked = [verdict for verdict in verdicts if "--attention" in verdict.question.arguments]
    if not asked:
        return ""
    cells: dict[str, dict[str, str]] = {}
    for verdict in asked:
        for entry in verdict.everyone:
            mark = STRUCK if entry.label in verdict.struck else RACING
            number = value(entry.mean, verdict.metric)
            text = f"{mark} **{number}**" if entry in verdict.close else f"{mark} {number}"
            for name in entry.names:
                cells.setdefault(parse(name)[0], {})[verdict.question.name] = text
    lines = [
        f"| mechanism | what it does | {' | '.join(_head(verdict) for verdict in asked)} |",
        f"| :-- | :-- | {' | '.join(['--:'] * len(asked))} |",
    ]
    for name in sorted(cells):
        fared = " | ".join(cells[name].get(verdict.question.name, "–") for verdict in asked)
        lines.append(f"| {code(name)} | {_sentence(name)} | {fared} |")
    told = (
        f"{RACING} may be the best of its column, {STRUCK} is not; **bold**: in the race and within the margin of the "
        "best mean; – was not asked, or cannot do it."
    )
    return "\n\n".join(["## All mechanisms at a glance", told, "\n".join(lines)])


def _head(verdict: Verdict) -> str:
    return f"{code(verdict.question.name)}: {verdict.metric.replace('_', ' ')}"


def _sentence(name: str) -> str:
    """What a mechanism does, in the words of its own docstring."""
    text = inspect.getdoc(MECHANISMS[name].layer) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("|", "\\|")
