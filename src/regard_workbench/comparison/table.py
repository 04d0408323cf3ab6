"""Tables of a comparison: for the terminal, as CSV, and as LaTeX."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from regard_workbench.comparison.columns import Column, columns, counted, mark_notes, naming, target_text
from regard_workbench.comparison.comparison import DEFAULT_COLUMNS
from regard_workbench.comparison.fairness import size_note, unequal_sizes
from regard_workbench.comparison.results import Row, deciding
from regard_workbench.csv_text import csv_text
from regard_workbench.tasks.measures.metrics import SHARE

_PLAIN = (
    "label",
    "model",
    "attention",
    "init_from",
    "task",
    "seeds",
    "budget",
    "decides",
    "higher_is_better",
    "unit",
    "parameters",
    "steps_per_second",
    "peak_memory_mib",
    "flops_per_step",
    "steps",
    "seconds",
    "match",
    "width",
    "trained_as",
    "target",
    "target_given",
    "batch_size",
)
MATCHED = " Equal ones: --match parameters."  # what to try, for who runs the command
_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\char34{}",
    "'": r"\textquotesingle{}",
    "`": r"\textasciigrave{}",
    "·": r"$\cdot$",
    "–": r"\textendash{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "†": r"\dag{}",
    "‡": r"\ddag{}",
}
_NARROWEST = 10  # of the names' column
_LIGATURES = re.compile(r"([-,])(?=\1)")  # `--` would become one longer dash
_ACCENTED = {*map(chr, range(0xC0, 0x100))} - {*"ÐÞðþ÷"}  # in LaTeX's default fonts


def render(rows: Sequence[Row], names: Sequence[str] = DEFAULT_COLUMNS) -> RenderableType:
    """The table for the terminal: the model and the columns with these names; notes below."""
    table = ResultTable(*_names(rows), columns(rows, names))
    notes = Text("\n".join(_notes(rows, names)), style="dim")
    return Group(table, Text(""), notes) if notes else table


@dataclass(frozen=True)
class ResultTable:
    """The table of results. Columns that do not fit into the terminal continue in a second table below the first."""

    heading: str
    names: list[str]
    columns: list[Column]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The parts, one below the other."""
        for number, block in enumerate(self.parts(options.max_width)):
            if number:
                yield Text("")
            yield self._table(block)

    def parts(self, width: int) -> list[list[Column]]:
        """The columns in parts that fit into a width beside the names, which may break between their options."""
        longest = max(len(piece) for name in [self.heading, *self.names] for piece in name.split(","))
        room = width - min(longest + 1, max(_NARROWEST, width // 3))
        blocks: list[list[Column]] = [[]]
        left = room
        for column in self.columns:
            needed = 2 + max(cell_len(text) for text in [*column.title, *map(str, column.cells)])
            if blocks[-1] and needed > left:
                blocks.append([])
                left = room
            blocks[-1].append(column)
            left -= needed
        return blocks

    def _table(self, part: Sequence[Column]) -> Table:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
        table.add_column(self.heading, overflow="fold", min_width=_NARROWEST)
        for column in part:
            table.add_column(Text("\n".join(column.title)), justify="right", no_wrap=True)
        for index, name in enumerate(self.names):
            table.add_row(Text(re.sub(r",\s*", ", ", name)), *[_shown(column, index) for column in part])
        return table


def _names(rows: Sequence[Row]) -> tuple[str, list[str]]:
    """Heading and names of the first column: what tells contestants apart, so that the table fits into 80 columns."""
    titles = naming(rows)
    names = [" · ".join(row[field] for field in titles) for row in rows]
    if "model" in titles:
        return " · ".join(titles.values()), names
    verb = {"attention": "with", "init_from": "that begins with"}[next(iter(titles))]
    return f"{rows[0]['model']} {verb}", names


def _shown(column: Column, index: int) -> Text:
    cell = column.cells[index]
    return Text(str(cell), style="bold" if cell.best else "")


def _notes(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    """How to read the table, and problems of single rows."""
    notes = []
    most = max((len(row["seeds"]) for row in rows), default=0)
    if most > 1:
        notes.append(f"± half of the 95 % interval over {_seeds(rows)} (Student's t). Bold: best of a column.")
    elif most == 1:
        notes.append("One seed: no interval, and no difference can be claimed. More: --seeds 3.")
    notes += mark_notes(columns(rows, names))
    notes += _sizes(rows)
    if {"steps-to-target", "seconds-to-target"} & {*names} and (target := target_note(rows)):
        notes.append(target)
    for name in names:
        split, dot, metric = name.partition(".")
        if dot and not any(metric in row[split] for row in rows):
            available = dict.fromkeys(available for row in rows for available in row[split])
            notes.append(f"No run has the metric {metric} on {split}. There are: {', '.join(available) or 'none'}.")
    for row in rows:
        for error in dict.fromkeys(row["failed"].values()):
            seeds = [seed for seed, its in row["failed"].items() if its == error]
            notes.append(f"{row['label']}, seed {', '.join(seeds)}: failed: {error}")
        notes += [f"{row['label']}: {warning}" for warning in row["warnings"]]
    return notes


def _sizes(rows: Sequence[Row]) -> list[str]:
    """Whether the contestants are of equal size."""
    if note := size_note(rows):
        return [note]
    sizes = unequal_sizes(rows)
    if sizes is None:
        return []
    least, most = map(counted, sizes)
    return [f"Sizes differ: {least} to {most} parameters.{MATCHED}"]


def target_note(rows: Sequence[Row]) -> str:
    """What the target of convergence is; empty where there is none."""
    target = target_text(rows)
    if not target:
        return ""
    by_user = next(row["target_given"] for row in rows if row["target"] is not None)
    name = deciding(rows).name.replace("_", " ")
    which = "as given" if by_user else "the best score that every run reaches"
    return f"Target: validation {name} {target}, {which}; counted to the first validation that reaches it."


def _seeds(rows: Sequence[Row]) -> str:
    counts = sorted({len(row["seeds"]) for row in rows if len(row["seeds"]) > 1})
    return f"{' or '.join(map(str, counts))} seeds"


def render_pairs(pairs: Sequence[Row]) -> RenderableType:
    """The paired comparisons for the terminal: difference, interval and p values of each pair."""
    if not pairs:
        return Text("No two contestants to compare.")
    metric = pairs[0]["metric"]
    share = pairs[0]["unit"] == SHARE
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("first − second", overflow="fold", min_width=20)
    unit = "points" if share else metric.replace("_", " ")
    for title in (f"difference\n{unit}", "95 % interval", "p seeds\n(Holm)", "p examples\n(Holm)"):
        table.add_column(Text(title), justify="right", no_wrap=True)
    for pair in pairs:
        mean, low, high = (_signed(pair["difference"][end], share) for end in ("mean", "low", "high"))
        interval = f"{low} to {high}" if len(pair["seeds"]) > 1 else "one seed"
        examples = _p(pair["bootstrap"] and pair["bootstrap"]["p_holm"])
        cells = (mean, interval, _p(pair["p_holm"]), examples)
        style = "bold" if pair["better"] else ""
        names = Text.assemble(
            (pair["first"], "bold" if pair["better"] == pair["first"] else ""),
            " − ",
            (pair["second"], "bold" if pair["better"] == pair["second"] else ""),
        )
        table.add_row(names, *[Text(cell, style=style) for cell in cells])
    claims = Text("\n".join(pair["claim"] for pair in pairs), style="dim")
    return Group(table, Text(""), claims)


def _signed(value: float | None, share: bool) -> str:
    if value is None:
        return "–"
    return f"{100 * value:+.2f}" if share else f"{value:+.3g}"


def _p(value: float | None) -> str:
    if value is None:
        return "–"
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def to_csv(rows: Sequence[Row]) -> str:
    """One line for each contestant; mean, low and high of every metric in separate columns."""
    metrics = [
        (split, name)
        for split in ("validation", "test")
        for name in dict.fromkeys(name for row in rows for name in row[split])
    ]
    ends = ("mean", "low", "high")
    reached = ("steps_to_target", "seconds_to_target")
    measured = [
        *(f"{name}_{end}" for name in reached for end in ends),
        *(f"{split}_{name}_{end}" for split, name in metrics for end in ends),
    ]
    lines: list[list[Any]] = [[*_PLAIN, *measured, "failed", "data_sha256", "signature"]]
    for row in rows:
        intervals = [row[name] or {} for name in reached] + [row[split].get(name, {}) for split, name in metrics]
        numbers = [interval.get(end) for interval in intervals for end in ends]
        failed = "; ".join(f"seed {seed}: {error}" for seed, error in row["failed"].items())
        plain = [_flat(row[name]) for name in _PLAIN]
        lines.append([*plain, *map(_flat, numbers), failed, row["data_sha256"], row["signature"]])
    return csv_text(lines)


def _flat(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, list) else value


def to_latex(rows: Sequence[Row], shown: Sequence[str] = DEFAULT_COLUMNS) -> str:
    """A table for a paper, with booktabs: intervals, best values in bold; task, budget and seeds in the caption."""
    table_columns = columns(rows, shown)
    names = naming(rows, alone=True)
    head = [*names.values(), *[" ".join(column.title) for column in table_columns]]
    lines = [
        "% needs \\usepackage{booktabs}",
        "\\begin{table}",
        "  \\centering",
        f"  \\caption{{{_caption(rows, shown)}}}",
        f"  \\begin{{tabular}}{{{'l' * len(names)}{'r' * len(table_columns)}}}",
        "    \\toprule",
        "    " + " & ".join(map(_escaped, head)) + " \\\\",
        "    \\midrule",
    ]
    for index, row in enumerate(rows):
        cells = [_escaped(row[name]) for name in names] + [_latex(column, index) for column in table_columns]
        lines.append("    " + " & ".join(cells) + " \\\\")
    return "\n".join([*lines, "    \\bottomrule", "  \\end{tabular}", "\\end{table}", ""])


def _caption(rows: Sequence[Row], shown: Sequence[str]) -> str:
    if not rows:
        return ""
    seeds = sorted({seed for row in rows for seed in row["seeds"]})
    caption = f"{rows[0]['task']}: {rows[0]['budget']} each; "
    if len(seeds) > 1:
        caption += f"mean and half of the 95 % interval over seeds {', '.join(map(str, seeds))}."
    else:
        caption += f"seed {seeds[0]} alone, no interval." if seeds else "no run finished."
    caption += "".join(f" {note}" for note in mark_notes(columns(rows, shown)))
    caption += "".join(f" {note.removesuffix(MATCHED)}" for note in _sizes(rows))
    if any(name.endswith("-to-target") for name in shown) and (note := target_note(rows)):
        caption += f" {note}"
    failed = [f"{row['label']}, seed {', '.join(row['failed'])}" for row in rows if row["failed"]]
    return _escaped(caption + (f" Failed: {'; '.join(failed)}." if failed else ""))


def _latex(column: Column, index: int) -> str:
    cell = column.cells[index]
    text = _escaped(cell.text)
    text = f"\\textbf{{{text}}}" if cell.best else text
    number = f"{text} $\\pm$ {_escaped(cell.half)}" if cell.half else text
    return number + _escaped_unit(cell.unit) + _escaped(cell.mark)


def _escaped_unit(unit: str) -> str:
    return f"\\,{_escaped(unit)}" if unit else ""


def _escaped(text: str) -> str:
    """A text escaped for LaTeX; characters that its fonts lack are written as code points."""
    return _LIGATURES.sub(r"\1{}", "".join(map(_sign, " ".join(text.split()))))


def _sign(sign: str) -> str:
    if sign in _LATEX:
        return _LATEX[sign]
    usual = (sign.isascii() and sign.isprintable()) or sign in _ACCENTED
    return sign if usual else f"U+{ord(sign):04X}"
