"""The report: its data, rendered by its template. The template escapes everything that comes from outside."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from regard.observation.figure_text import readable
from regard_workbench.comparison.comparison import Comparison
from regard_workbench.comparison.fairness import fairness, size_note
from regard_workbench.comparison.matching import WORDS
from regard_workbench.comparison.report import robustness, summary, tables
from regard_workbench.comparison.report.gallery import AttentionView, gallery
from regard_workbench.comparison.report.keys import keys_of
from regard_workbench.comparison.results import Row, deciding
from regard_workbench.comparison.shareable import without_folders
from regard_workbench.comparison.table import target_note
from regard_workbench.figures import svg
from regard_workbench.figures.style import FEW, NAMED
from regard_workbench.training.run_folder import durable

FIGURES = "figures"
SEGMENTED = "dynamic-memory"  # an attention that reads a text segment by segment
MANY = 6  # with more contestants, attention figures are set closer
AT_SPEED = "Seconds to the target are steps to the target divided by steps per second."
AS_TRAINED = "Seconds to the target are those of training, without validation."
HOW = {
    "exact": "the weights that the layer itself used",
    "effective": "the layer never computes these weights, but its output equals the mean of its values with them",
    "gradient × input": "how much each input influences the answer; no layer has weights over the input here",
    "unverified": "computed from what is known of the layer, but not confirmed by its output",
}


def write(comparison: Comparison, rows: Sequence[Row], path: Path) -> None:
    """Write the report to `path` atomically, and its figures as SVG and PDF to `figures` beside it."""
    durable.replace(path, rendered(comparison, rows, path.parent / FIGURES).encode())


def rendered(comparison: Comparison, rows: Sequence[Row], folder: Path) -> str:
    """The page as text; figures are also written to `folder`."""
    with durable.reporting(folder):
        folder.mkdir(parents=True, exist_ok=True)
    split = summary.shown_split(rows)
    rows = summary.best_first(rows, split)
    styles, pairs = keys_of(rows), comparison.pairs
    contestants = {contestant.label: contestant for contestant in comparison.contestants}
    pictures = gallery(comparison, rows, styles, split, folder)
    script = _own("page.js")
    return _template().render(
        title=summary.title(rows, comparison.task),
        finding=summary.finding(rows, pairs, split),
        comparison=comparison,
        metric=deciding(rows),
        split=split,
        direction="; ".join(dict.fromkeys(run.direction for run in comparison.outcomes if run.direction)),
        keys=list(styles.values()),
        numbered=len(styles) > NAMED,
        every_seed=len(styles) <= FEW,
        swatches=Markup("".join(svg.swatch(key) for key in styles.values())),
        results=tables.sortable(rows, styles, tables.RESULTS),
        convergence=tables.sortable(rows, styles, tables.CONVERGENCE) if target_note(rows) else None,
        costs=tables.sortable(rows, styles, tables.COSTS),
        robustness=robustness.table(comparison, rows, styles),
        segments=any(row["attention"].startswith(SEGMENTED) for row in rows),
        size=size_note(rows),
        equal=WORDS[comparison.match.by] if comparison.match else "",
        target=target_note(rows),
        seconds=AT_SPEED if comparison.costs else AS_TRAINED,
        pictures=pictures,
        drawn=Markup,
        matrix=tables.matrix(pairs, styles) if pairs else [],
        full=len(styles) <= tables.FULL,
        many=len(styles) > MANY,
        claims=[pair["claim"] for pair in pairs],
        facts=[tables.facts(comparison, row, contestants[row["label"]], styles[row["label"]]) for row in rows],
        fairness=fairness(comparison),
        failed=tables.failures(rows),
        how={how: HOW[how] for how in HOW if how in _kinds(pictures.views)},
        readable=readable,
        surroundings=_surroundings(comparison),
        css=Markup(_own("page.css")),
        script=Markup(script),
        script_hash=Markup(base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()),
    )


def _template() -> jinja2.Template:
    surrounding = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_shareable
    )
    return surrounding.from_string(_own("page.html"))


def _shareable(content: Any) -> Any:
    """What is put into the template: a text without folders; our own script, styles and figures as they are."""
    return without_folders(content) if isinstance(content, str) and not isinstance(content, Markup) else content


def _own(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _kinds(views: Sequence[AttentionView]) -> set[str]:
    return {attribution.how for view in views for attribution, _ in view.plates}


def _surroundings(comparison: Comparison) -> list[tuple[str, str]]:
    """Versions and machine, as the runs recorded them; all distinct values."""
    versions: dict[str, dict[str, None]] = {}

    def note(name: str, value: Any) -> None:
        if value not in (None, "", {}):
            versions.setdefault(name, {})[str(value)] = None

    for run in comparison.outcomes:
        for name, value in run.versions.items():
            note(name, value)
        try:
            facts = json.loads(durable.read(Path(run.folder) / "env.json"))
            for name in ("python", "system", "processors", "gpu", "cuda"):
                note(name, facts.get(name))
            note("begun", str(facts.get("started", ""))[:10])
        except (OSError, ValueError, AttributeError):
            continue
    return [(name, ", ".join(values)) for name, values in versions.items()]
