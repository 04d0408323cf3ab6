"""The curves of one run as figures in its folder: training loss, and the metric that decides."""

from __future__ import annotations

from pathlib import Path

from regard.registry import parse
from regard_workbench.figures import curves, svg
from regard_workbench.figures.history import history
from regard_workbench.figures.style import Key, style
from regard_workbench.tasks import TASKS
from regard_workbench.tasks.measures.metrics import Metric
from regard_workbench.training.run_folder import metrics_file
from regard_workbench.training.run_folder.folder import RunFolder


def draw_run(folder: Path) -> list[Path]:
    """Draw the curves of a run into its `figures` folder (SVG and PDF); returns the SVG files, none for a run
    without metrics."""
    run = RunFolder(folder)
    records = metrics_file.read(run.metrics)
    if not records:
        return []
    label = folder.name
    keys = {label: Key(1, label, label)}
    runs = [history(label, 0, records)]
    metric = _deciding(str(run.settings().get("task", "")))
    paths: list[Path] = []
    with style():
        drawings = [curves.loss_curve(runs, keys, "step")]
        if metric is not None:
            drawings.append(curves.curve(runs, keys, metric, "step"))
        for drawing in drawings:
            if drawing is not None:
                svg.publish(drawing, run.path / "figures")
                paths.append(run.path / "figures" / f"{drawing.name}.svg")
    return paths


def _deciding(task: str) -> Metric | None:
    """The metric by which a task's checkpoints are judged."""
    name = parse(task)[0]
    metric = TASKS[name].metric if name in TASKS.names() else None
    return metric if isinstance(metric, Metric) else None
