"""What passes between a comparison and its runs: a `Job` describes a run, an `Outcome` is its result.

A `Job` is plain JSON data, so that any engine (a process here, a worker of a cluster) can carry it. A run writes its
`Outcome` into its folder as `outcome.json`; a run with the same settings and an outcome is not repeated. The outcome
holds the SHA-256 of the measured checkpoint and of the run's metrics, and a checksum of its own over settings, metrics,
weights and results.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regard_workbench.tasks.measures.metrics import States
from regard_workbench.training.run_folder import checksum, durable

FILE = "outcome.json"
Settings = dict[str, Any]  # by dotted name, as `regard.training.train` takes them
SCRATCH = "scratch"  # in `init_from`: begin with random weights


@dataclass(frozen=True)
class Contestant:
    """One row of the comparison: a model, the attention inside it and the weights it begins with."""

    model: str  # as the user wrote it, with options: "decoder(layers=4)"
    attention: str | None = None  # as the user wrote it; None: the model's default
    # The folder of a run, or `SCRATCH`; None: what the settings of the comparison say, the same for all.
    init_from: str | None = None

    @property
    def label(self) -> str:
        """The name in tables and figures."""
        origin = None if self.init_from is None else f"from {self.init_from}"
        return " · ".join(component for component in (self.model, self.attention, origin) if component is not None)


@dataclass(frozen=True)
class Job:
    """One run: a contestant and a seed, the settings it trains with, the folder it lives in."""

    contestant: Contestant
    seed: int
    settings: Settings  # task, model, attention, seed, steps or budget …; never out or name
    folder: str  # the run's folder, absolute
    threads: int = 1  # torch threads of its process
    test: bool = True  # measure the test split at the end; trials of a sweep must not
    beam: int | None = None  # beam width of sequences generated for the test; None: greedy
    use: tuple[str, ...] = ()  # plugin files of the user
    timeout: float | None = None  # seconds the job may take; None: no limit
    heartbeat: float | None = None  # seconds between two signs of progress; None: no limit

    def to_json(self) -> str:
        """The job as JSON, for another process."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Job:
        """The job that `to_json` wrote."""
        fields = json.loads(text)
        fields["contestant"] = Contestant(**fields["contestant"])
        fields["use"] = tuple(fields["use"])
        return cls(**fields)


@dataclass(frozen=True)
class Outcome:
    """The result of a run."""

    model: str
    attention: str | None
    seed: int
    settings: Settings  # of the job, to recognise the same run
    folder: str
    error: str = ""  # empty: the run finished
    steps: int = 0
    seconds: float = 0.0  # of training steps, validations not counted
    steps_per_second: float = 0.0  # without the first steps, which compile; 0 in records that lack it
    stopped_by: str = ""  # "steps", "budget", "patience"
    parameters: int = 0
    metric: str = ""  # the one that decides, with its direction
    higher_is_better: bool = True
    validation: dict[str, float] = field(default_factory=dict)  # of the best checkpoint
    test: dict[str, float] = field(default_factory=dict)  # of the same checkpoint
    best_step: int | None = None
    blocks: list[States] = field(
        default_factory=list
    )  # the test split in pieces, the same in every run of the task, with the state of each metric
    data_sha256: str = ""  # of the test batches as the model read them
    command: str = ""  # reproduces this run alone
    versions: dict[str, str] = field(default_factory=dict)  # regard, torch, python, device
    protocol: dict[str, str] = field(default_factory=dict)  # how a metric of the test is computed, by its name
    beam: int | None = None  # beam width of sequences generated for the test; None: greedy, or none
    direction: str = ""  # of a translation: what is read and what is written
    changes: list[str] = field(default_factory=list)  # of settings when the run was resumed, in words
    checkpoint: str = ""  # the measured one
    checkpoint_sha256: str = ""  # of its weights
    settings_sha256: str = ""  # of the settings in the checkpoint; empty for a run of an earlier version
    metrics: dict[str, Any] | None = None  # length and SHA-256 of metrics.jsonl when the run ended
    init_from: str | None = None  # of the contestant

    @property
    def contestant(self) -> Contestant:
        """The contestant that ran."""
        return Contestant(self.model, self.attention, self.init_from)

    def save(self) -> None:
        """Write outcome.json into the run's folder, atomically."""
        durable.replace(Path(self.folder) / FILE, checksum.json_bytes(dataclasses.asdict(self)))

    @classmethod
    def load(cls, folder: str | Path, tell: Callable[[str], None] = lambda text: None) -> Outcome | None:
        """The outcome in a run's folder; None if there is none, or, reported to `tell`, if it cannot be used."""
        path = Path(folder) / FILE
        try:
            fields, sealed = checksum.read_json(durable.read(path), path)
            outcome = cls(**fields)
        except FileNotFoundError:
            return None
        except checksum.FileChanged as changed:
            tell(f"{changed} The run is measured again.")
            return None
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as trouble:
            tell(f"{path} cannot be read ({type(trouble).__name__}: {trouble}). The run is measured again.")
            return None
        if not sealed:
            tell(f"{path}: {checksum.NO_CHECKSUM}.")
        return outcome


@dataclass(frozen=True)
class Cost:
    """The cost of one training step of a contestant, measured with no other contestant running."""

    steps_per_second: float
    peak_memory_mib: float  # on a GPU what torch allocated; on a CPU how far the process grew while it trained
    flops_per_step: float  # forward and backward, multiply and add counted as two
    parameters: int
    batch: dict[str, list[int]] = field(default_factory=dict)  # the shapes it was measured with
    device: str = ""
    threads: int = 1  # of torch, on a CPU
