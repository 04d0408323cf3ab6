"""The section of one question: the picture, the table, what was found, what was not, and how to have it again."""

from __future__ import annotations

from collections.abc import Sequence

from regard.comparison.columns import Column, counted, number, quality, significant

from . import negatives, sentences
from .entries import Entry
from .verdict import Verdict
from .wording import code

RACING, STRUCK = "●", "○"


def section(verdict: Verdict, picture: str, alt: str, data: str, home: str) -> str:
    """The section as Markdown; `picture` is the file of its figure, as seen from the page."""
    question = verdict.question
    parts = [
        f"## {question.title}",
        f"*{question.asks}*",
        " ".join(part for part in (question.story, question.tuned) if part),
        *_unfinished(verdict),
        f"![{alt}]({picture})",
        table(verdict),
        *_bullets("**Found.**", sentences.findings(verdict)),
        *_bullets("**Negative results.**", negatives.negative(verdict, verdict.comparison.left_out)),
        *_bullets("**Same thing, other name.**", negatives.check(verdict)),
        details(verdict, data, home),
    ]
    return "\n\n".join(parts)


def _unfinished(verdict: Verdict) -> list[str]:
    if (verdict.comparison.out / "results.json").exists():
        return []
    return ["**Unfinished**: not all runs of this comparison have ended, and what follows will change."]


def _bullets(title: str, said: Sequence[str]) -> list[str]:
    if not said:
        return []
    return [title + " " + said[0]] if len(said) == 1 else [title, "\n".join(f"- {one}" for one in said)]


def table(verdict: Verdict) -> str:
    """One line for each computation, the best first."""
    rows = [entry.row for entry in verdict.everyone]
    columns = [
        quality(rows, "test"),
        number(rows, "steps_per_second", ("steps/s",), significant, higher=True),
        number(rows, "parameters", ("parameters",), counted, higher=False),
        number(rows, "flops_per_step", ("FLOPs/step",), counted, higher=False),
        number(rows, "peak_memory_mib", ("memory, MiB",), significant, higher=False),
    ]
    made = [column for column in columns if column is not None]
    seeds = max(len(entry.seeds) for entry in verdict.everyone)
    lines = [
        ["", _heading(verdict), *[" ".join(column.title) for column in made]],
        [":-:", ":--", *["--:"] * len(made)],
    ]
    for place, entry in enumerate(verdict.everyone):
        mark = STRUCK if entry.label in verdict.struck else RACING
        lines.append([mark, _names(entry, verdict, seeds), *[_cell(column, place) for column in made]])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _heading(verdict: Verdict) -> str:
    models = {row["model"] for row in (entry.row for entry in verdict.everyone)}
    return f"attention in `{models.pop()}`" if len(models) == 1 < len(verdict.everyone) else "model"


def _names(entry: Entry, verdict: Verdict, seeds: int) -> str:
    name = f"**{code(entry.name)}**" if entry is verdict.take else code(entry.name)
    twins = f" = {', '.join(map(code, entry.twins))}" if entry.twins else ""
    few = f" ({len(entry.seeds)} of {seeds} seeds)" if len(entry.seeds) < seeds else ""
    return name + twins + few


def _cell(column: Column, place: int) -> str:
    cell = column.cells[place]
    alike = all(each.best for each in column.cells)
    text = f"**{cell.text}**" if cell.best and not alike else cell.text
    return f"{text} ± {cell.half}" if cell.half else text


def details(verdict: Verdict, data: str, home: str) -> str:
    """The command, and the signature of every number, folded away."""
    comparison = verdict.comparison
    sha = sorted({run.data_sha256[:12] for run in comparison.outcomes if run.data_sha256})
    return "\n".join(
        [
            "<details><summary>The command, and a signature for every row</summary>",
            "",
            "```bash",
            verdict.question.shown(data, home),
            "```",
            "",
            f"Test examples: sha256 {', '.join(sha)}. Signatures:",
            "",
            "```text",
            *[str(entry.row["signature"]) for entry in verdict.everyone],
            "```",
            "",
            "</details>",
        ]
    )
