"""Metrics for other programs: TensorBoard, Weights & Biases, MLflow, trackio (`--report-to`, several joined by commas).

metrics.jsonl is the record of a run; what is reported is a copy of it. So an error of a reporter is told once and the
run continues without it. Without an account or a server, each of them writes into the run's folder. A run that is
resumed goes on under the same entry.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from regard.errors import BadValue

TRAINING = ("loss", "lr", "grad_norm", "steps_per_second", "tokens", "epoch")
PROJECT = "regard"
ENTRY = "entry.txt"  # what a run is known by elsewhere, so that a resumed one is found again
ENTRY_TAG = "regard.entry"


class Reporter(Protocol):
    """Where metrics go."""

    def write(self, metrics: dict[str, float], step: int) -> None:
        """Report the metrics of a step, by names such as `train/loss`."""

    def close(self) -> None:
        """Write out what is left."""


class TensorBoard:
    """Event files in `tensorboard/` of the run's folder."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], after: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # On resume, steps after the checkpoint are repeated; what was written of them is hidden.
        self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=after + 1 if after else None)

    def write(self, metrics: dict[str, float], step: int) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class WeightsAndBiases:
    """A run of the project `regard`, offline in `wandb/` of the run's folder unless the user is logged in."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], after: int) -> None:
        import wandb

        mode: Any = os.environ.get("WANDB_MODE") or ("online" if wandb.api.api_key else "offline")
        entry = _entry(folder / "wandb" / ENTRY, after)
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=folder.name,
            dir=str(folder),
            mode=mode,
            config=dict(settings),
            reinit="create_new",
            id=entry,
            resume="allow",
        )

    def write(self, metrics: dict[str, float], step: int) -> None:
        self.run.log(metrics, step=step)

    def close(self) -> None:
        self.run.finish()


class MLflow:
    """A run of the experiment `regard`, at MLFLOW_TRACKING_URI or in `mlflow/` of the run's folder."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], after: int) -> None:
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if uri is None:  # a folder needs no server and no database; MLflow asks to confirm that
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            uri = (folder / "mlflow").absolute().as_uri()
        from mlflow import MlflowClient

        self.client = MlflowClient(uri)
        existing = self.client.get_experiment_by_name(PROJECT)
        experiment = self.client.create_experiment(PROJECT) if existing is None else existing.experiment_id
        tag = {ENTRY_TAG: _entry(folder / "mlflow" / ENTRY, after)}
        earlier_runs = self.client.search_runs([experiment], f"tags.`{ENTRY_TAG}` = '{tag[ENTRY_TAG]}'")
        if earlier_runs:
            self.run = earlier_runs[0].info.run_id
            self.client.update_run(self.run, status="RUNNING")
            return
        self.run = self.client.create_run(experiment, run_name=folder.name, tags=tag).info.run_id
        for name, value in settings.items():
            self.client.log_param(self.run, name, str(value)[:500])

    def write(self, metrics: dict[str, float], step: int) -> None:
        for name, value in metrics.items():
            self.client.log_metric(self.run, name, value, step=step)

    def close(self) -> None:
        self.client.set_terminated(self.run)


class Trackio:
    """A run of the project `regard` in trackio's own folder (TRACKIO_DIR), or in `trackio/` of the run's folder.

    trackio reads its folder when it is imported: later runs of the same process share that of the first.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], after: int) -> None:
        chosen = os.environ.get("TRACKIO_DIR")
        os.environ["TRACKIO_DIR"] = chosen or str((folder / "trackio").absolute())
        try:
            import trackio
        finally:
            if chosen is None:  # processes that this one starts have runs of their own
                del os.environ["TRACKIO_DIR"]
        self.trackio = trackio
        options = {name: str(value) for name, value in settings.items()}
        # trackio finds a run again by its name, and many folders may have the same one.
        name = f"{folder.name}-{_entry(folder / 'trackio' / ENTRY, after)}"
        self.run = trackio.init(project=PROJECT, name=name, config=options, resume="allow", embed=False)

    def write(self, metrics: dict[str, float], step: int) -> None:
        self.run.log(metrics, step=step)

    def close(self) -> None:
        self.trackio.finish()  # and not `run.finish`, after which trackio would finish the run again at exit


def _entry(path: Path, after: int) -> str:
    """What a run is known by elsewhere: a new name for a new run, the kept one for a run that is resumed."""
    if after and path.is_file():
        return path.read_text(encoding="utf-8").strip()
    identifier = secrets.token_hex(4)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(identifier + "\n", encoding="utf-8")
    return identifier


# name: the package that is imported, the class
REPORTERS: dict[str, tuple[str, Callable[[Path, Mapping[str, Any], int], Reporter]]] = {
    "tensorboard": ("tensorboard", TensorBoard),
    "wandb": ("wandb", WeightsAndBiases),
    "mlflow": ("mlflow", MLflow),
    "trackio": ("trackio", Trackio),
}


def check_installed(names: str) -> None:
    """Raise if the package of a reporter is missing."""
    for name in names.split(","):
        if find_spec(REPORTERS[name][0]) is None:
            raise BadValue(f'report_to: {name} is not installed here. Try pip install "regard[{name}]".')


class Reports:
    """All reporters of a run. One that raises is left out from there on."""

    def __init__(
        self, names: str, folder: Path, settings: Mapping[str, Any], after: int, tell: Callable[[str], None]
    ) -> None:
        self.tell = tell
        self.open: dict[str, Reporter] = {}
        for name in names.split(","):
            with _Guard(self, name):
                self.open[name] = REPORTERS[name][1](folder, settings, after)

    def write(self, record: Mapping[str, Any]) -> None:
        """Report one record of metrics.jsonl."""
        if not self.open:
            return
        numbers = {f"train/{name}": record[name] for name in TRAINING if record.get(name) is not None}
        validation = record.get("validation", {})
        numbers |= {f"validation/{name}": value for name, value in validation.items() if value is not None}
        for name in list(self.open):
            with _Guard(self, name):
                self.open[name].write(numbers, record["step"])

    def close(self) -> None:
        """Close all of them."""
        for name in list(self.open):
            with _Guard(self, name):
                self.open[name].close()


class _Guard:
    """Leave a reporter out if it raises, and say so. What it prints goes to stderr: stdout is for results."""

    def __init__(self, reports: Reports, name: str) -> None:
        self.reports, self.name = reports, name
        self.elsewhere = redirect_stdout(sys.stderr)

    def __enter__(self) -> None:
        self.elsewhere.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        self.elsewhere.__exit__(None, None, None)
        if error is None or not isinstance(error, Exception):
            return False
        self.reports.open.pop(self.name, None)
        self.reports.tell(
            f"report_to: {self.name} failed and gets no further metrics ({type(error).__name__}: {str(error)[:300]}). "
            "The run goes on; metrics.jsonl has everything."
        )
        return True
