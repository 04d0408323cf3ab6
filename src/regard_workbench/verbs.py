"""`regard.train`, `evaluate`, `export`, `compare`, `view` and `attack`: verbs of the command line as typed functions.

    result = regard.train("dates", steps=500)
    regard.evaluate(result)["exact_match"]
    regard.compare("digits", models=["encoder", "lstm-attention"], seeds=3)    # in a notebook: table and figures
    regard.view(result, text="3rd of May, 1979")                               # in a notebook: the page

They run what the commands run, so a run folder of one is a run folder of the other. They need the extra `workbench`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import torch

from regard.errors import BadValue, RegardError
from regard_workbench.arguments import Files, folder_of, joined, load_plugins, named_settings, several, types_of
from regard_workbench.notebook_view import View

if TYPE_CHECKING:
    from regard.observation.seen import Seen
    from regard_workbench.attacks.report import AttackReport
    from regard_workbench.comparison.comparison import Comparison
    from regard_workbench.comparison.evaluate import Evaluation
    from regard_workbench.training.exporting.export import Exported
    from regard_workbench.training.run import Result

Arguments = ParamSpec("Arguments")
Found = TypeVar("Found")


class MissingPackage(RegardError, ImportError):
    """A package that the light install does not bring; the text says which extra does."""


def _needs_workbench(function: Callable[Arguments, Found]) -> Callable[Arguments, Found]:
    """The function with its arguments checked, and an error that names the extra where a package is not installed."""

    @functools.wraps(function)
    def wrapped(*arguments: Arguments.args, **options: Arguments.kwargs) -> Found:
        types_of(function).check(arguments, options)
        try:
            return function(*arguments, **options)
        except ModuleNotFoundError as missing:
            if missing.name is None or missing.name.partition(".")[0] in ("regard", "regard_workbench"):
                raise
            raise MissingPackage(
                f"regard.{function.__name__} needs the package {missing.name.partition('.')[0]}, which is not "
                'installed. Try pip install "regard[workbench]".'
            ) from missing

    return wrapped


@_needs_workbench
def train(
    task: str | None = None,
    *,
    model: str | None = None,
    attention: str | None = None,
    data: Files | None = None,
    steps: int | None = None,
    budget: str | None = None,
    seed: int | None = None,
    device: str | torch.device | None = None,
    precision: str | None = None,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    use: Files | None = (),
    quiet: bool = False,
    **settings: Any,
) -> Result:
    """Train a model on a task, as `regard train` does. What is not given comes from the task's recipe.

    Args:
        resume: the folder of a run or checkpoint to go on with, or "auto" for the run in `out` if there is one.
        use: files that register mechanisms, models or tasks of yours.
        quiet: show no progress on stderr.
        settings: any other setting of `regard train --help`: `batch_size=16`, `optim={"lr": 3e-4}`.

    >>> # result = regard.train("dates", steps=500, optim={"lr": 2e-3})
    >>> # result.metrics["exact_match"], result.folder
    """
    from regard_workbench.figures.run_curves import draw_run
    from regard_workbench.training.run import train as run

    load_plugins(use)
    named = {
        "task": task,
        "model": model,
        "attention": attention,
        "data": joined(data),
        "steps": steps,
        "budget": budget,
        "seed": seed,
        "device": device,
        "precision": precision,
        "out": out,
    }
    result = run(named_settings(named, settings), resume=None if resume is None else str(resume), quiet=quiet)
    draw_run(result.folder)
    return result


@_needs_workbench
def evaluate(
    run: str | Path | Result,
    split: str = "test",
    *,
    checkpoint: str | None = None,
    data: Files | None = None,
    device: str | torch.device = "auto",
    batch_size: int | None = None,
    beam: int | None = None,
    length_penalty: float | None = None,
    limit: int | None = None,
) -> Evaluation:
    """Measure a run on a split, as `regard evaluate` does: every metric of its task, and what exactly was measured.

    Args:
        run: the folder of a run or of one of its checkpoints, or what `train` returned.
        data: other files than the run's own.
        beam: write with so many beams.
        length_penalty: of beam search, by default the task's own.
        limit: only the first examples.
    """
    from regard_workbench.comparison.evaluate import evaluate_run

    return evaluate_run(
        folder_of(run),
        split,
        checkpoint=checkpoint,
        data=joined(data),
        device=str(device),
        batch_size=batch_size,
        beam=beam,
        length_penalty=length_penalty,
        limit=limit,
    )


@_needs_workbench
def export(
    run: str | Path | Result,
    to: str = "onnx",
    out: str | Path | None = None,
    *,
    checkpoint: str | None = None,
    data: Files | None = None,
) -> Exported:
    """Write the model of a run for other programs, as `regard export` does, and check that it answers the same.

    run: the folder of a run or of one of its checkpoints, or what `train` returned.
    to: "onnx", or "torch" for a program of `torch.export`. out: the file; by default in the run's folder.

    >>> # regard.export("runs/dates-1").path
    """
    from regard_workbench.training.exporting.export import export_run

    return export_run(folder_of(run), to, out, checkpoint=checkpoint, data=joined(data))


@_needs_workbench
def compare(
    task: str | None = None,
    *,
    models: str | Sequence[str] | None = None,
    attention: str | Sequence[str] | None = None,
    data: Files | None = None,
    seeds: int | str | Sequence[int] = 3,
    steps: int | None = None,
    budget: str | None = None,
    sweep: int = 0,
    out: str | Path | None = None,
    engine: str = "local",
    workers: int | None = None,
    beam: int | None = None,
    match: str | None = None,
    target: float | str | None = None,
    columns: str | Sequence[str] | None = None,
    use: Files | None = (),
    quiet: bool = False,
    **settings: Any,
) -> Comparison:
    """Train models × attentions × seeds on one task, as `regard compare` does; in a notebook it shows its report.

    Args:
        seeds: how many, or which.
        sweep: tune each contestant with so many trials first, by validation alone.
        match: "parameters" or "flops": choose widths at which all contestants have the same size within 5 %; "none". By
            default "parameters" for the models of the task's recipe, "none" for models that are named.
        target: the validation score whose steps and seconds are measured; by default the best that every run reaches.
        columns: of the printed table: "all", or names such as "speed,test,steps-to-target".
        settings: any other setting of the runs, as in `train`.

    >>> # comparison = regard.compare("digits", models=["encoder", "lstm-attention"], steps=300)
    >>> # comparison.rows[0]["test"]["accuracy"], comparison.report
    """
    from regard_workbench.cli.compare import ProgressDisplay
    from regard_workbench.comparison.compare import compare as run
    from regard_workbench.comparison.plan import make_plan

    load_plugins(use)
    named = {"task": task, "data": joined(data), "steps": steps, "budget": budget}
    options = {
        "models": models,
        "attention": attention,
        "seeds": seeds,
        "sweep": sweep or None,
        "out": out,
        "engine": None if engine == "local" else engine,
        "workers": workers,
        "beam": beam,
        "match": match,
        "target": target,
        "columns": columns,
        "use": use or None,
    }
    shown = {name: value for name, value in {**named, **options, **settings}.items() if value is not None}
    command = f"regard.compare({', '.join(f'{name}={value!r}' for name, value in shown.items())})"
    plan = make_plan(
        named_settings(named, settings),
        models=models,
        attention=attention,
        seeds=seeds,
        sweep=sweep,
        out=out,
        engine=engine,
        workers=workers,
        beam=beam,
        match=match,
        target=target,
        columns=columns,
        command=command,
    )
    if quiet:
        return run(plan)
    with ProgressDisplay() as display:
        return run(plan, display.on_event, display.tell)


@_needs_workbench
def view(
    what: str | Path | Result | Seen,
    *,
    text: str | None = None,
    target: str | None = None,
    image: str | Path | None = None,
    sound: str | Path | None = None,
    table: str | Path | None = None,
    example: int | None = None,
    generate: int | None = None,
    beams: int = 1,
    against: str | Path | None = None,
    checkpoint: str | None = None,
    checkpoints: bool = False,
    importance: bool = False,
    device: str | torch.device = "auto",
    tokens: Sequence[str] | None = None,
) -> View:
    """What a model attends to, as `regard view` shows it.

    what: a run (its folder, or what `train` returned), the folder of a Hugging Face model, or what `regard.observe`
        saw; for the last, `tokens` are the names of the positions and the other arguments do not apply.
    text, image, sound, table: what the model reads; without them an example of its task: `example` numbers
        those of the test split from 0.
    target: what it writes, in place of its own words. generate: let it write so many tokens, with `beams`.
    against: a second model on the same input. checkpoints: every checkpoint of a run, as a timeline.
    importance: also run the model without each head.

    >>> # regard.view("runs/dates-1", text="3rd of May, 1979").export("page.html")
    """
    from regard.observation.seen import Seen
    from regard_workbench.viewer.opening import ViewOptions, open_page
    from regard_workbench.viewer.page_model import page_model_of

    if isinstance(what, Seen):
        opening = (text, target, image, sound, table, example, generate, against, checkpoint)
        if any(value is not None for value in opening) or checkpoints or importance or beams != 1:
            raise BadValue(
                "what: this was already observed, so nothing is opened or run. Give `tokens` alone, or the folder of a "
                "model with text, image, sound, table or generate."
            )
        return View(page_model_of(what, tokens))
    if tokens is not None:
        raise BadValue("tokens: a model's own tokenizer says them. Leave it out, or pass what regard.observe saw.")
    options = ViewOptions(
        str(folder_of(what)),
        text=text,
        target=target,
        image=None if image is None else str(image),
        sound=None if sound is None else str(sound),
        table=None if table is None else str(table),
        generate=generate,
        beams=beams,
        against=None if against is None else str(against),
        checkpoint=checkpoint,
        checkpoints=checkpoints,
        importance=importance,
        example=example,
        device=str(device),
    )
    return View(open_page(options))


@_needs_workbench
def attack(
    run: str | Path | Result,
    method: str | None = None,
    *,
    eps: float | Sequence[float] | None = None,
    norm: str | None = None,
    steps: int | None = None,
    step_size: float | None = None,
    restarts: int | None = None,
    start: str | None = None,
    places: int | None = None,
    words: int | Sequence[int] | None = None,
    nearest: int | None = None,
    cosine: float | None = None,
    against: str | Path | Result | Sequence[str | Path | Result] | None = (),
    split: str = "test",
    checkpoint: str | None = None,
    data: Files | None = None,
    device: str | torch.device = "auto",
    batch_size: int | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> AttackReport:
    """Attack a classifier of pictures or texts, as `regard attack` does; in a notebook it shows its table.

    Args:
        method: "fgsm", "pgd", "attention" or "words"; by default "pgd", for texts "words".
        eps: one budget or several: how far a picture may move by `norm`; for texts, the share of its words.
        norm: "linf" or "l2".
        steps: steps of pgd.
        step_size: the length of one of its steps.
        restarts: how often it begins anew.
        start: where it begins: "random" or "clean".
        places: how many positions "attention" attacks.
        words: how many words may be replaced.
        nearest: only by so many nearest words.
        cosine: only by words at least so near.
        against: other runs, attacked in the same way.

    >>> # report = regard.attack("runs/digits-1", "pgd", eps=[0.03, 0.1])
    >>> # report.runs[0].rows[-1].accuracy, report.figure()
    """
    from regard_workbench.attacks.attack import attack_runs
    from regard_workbench.attacks.settings import AttackSettings

    settings = AttackSettings(
        method,
        None if eps is None else several(eps),
        norm,
        steps,
        step_size,
        restarts,
        start,
        places,
        None if words is None else several(words),
        nearest,
        cosine,
        seed,
    )
    return attack_runs(
        [folder_of(run), *map(folder_of, several(against))],
        settings,
        split,
        checkpoint=checkpoint,
        data=joined(data),
        device=str(device),
        batch_size=batch_size,
        limit=limit,
    )
