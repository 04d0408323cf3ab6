"""A trained run as a graph for other programs: traced, written, read back and compared with the model."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import BadValue, RegardError, unknown_name
from regard_workbench.models import Model
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.task import Task
from regard_workbench.training.exporting.interface import GraphModel, Interface, interface_of, outputs_of
from regard_workbench.training.exporting.program import first_line, free_axes, trace
from regard_workbench.training.loading import Loaded, load

FORMATS = {"onnx": ".onnx", "torch": ".pt2"}
SIZES = (3, 1, 2, 5)  # examples in the batches that are compared; the graph is traced with the first
TOLERANCE = 1e-3  # of the largest output: other programs sum in another order


class ExportDiffers(RegardError, RuntimeError):
    """The exported graph does not give what the model gives."""


@dataclass(frozen=True)
class Exported:
    """What was written, and how it was checked."""

    path: Path
    description: Path
    inputs: dict[str, dict[str, Any]]
    outputs: dict[str, list[int | str]]  # "any" where the batches that were compared differ
    batches: list[list[int]]  # the shapes of the first input in the batches that were compared
    largest_difference: float  # of any output, as a share of the largest number in it
    operators: int | None  # how many kinds of operators an ONNX file uses

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data."""
        return {**vars(self), "path": str(self.path), "description": str(self.description)}


def export_run(
    run: str | Path,
    to: str = "onnx",
    out: str | Path | None = None,
    *,
    checkpoint: str | None = None,
    data: object = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Exported:
    """Write the model of a run as a graph in standard operators, and compare its answers with the model's.

    to: "onnx", or "torch" for a program of `torch.export`, which torch runs without regard.
    out: the file to write; by default model.onnx or model.pt2 in the run's folder. Its description lies beside it under
        the whole name with .json behind (model.onnx.json). A file there that is no description is not overwritten.
    """
    if to not in FORMATS:
        raise unknown_name("to", to, FORMATS)
    loaded = load(run, checkpoint, device="cpu", data=data)
    path = loaded.run / f"model{FORMATS[to]}" if out is None else Path(out)
    _check_path(path, to)
    description = path.with_name(f"{path.name}.json")
    _check_description(description)
    model, task = loaded.model.float().eval(), loaded.task
    examples = next(
        (candidates for split in ("validation", "test", "train") if len(candidates := task.examples(split))), ()
    )
    if not len(examples):
        raise BadValue("data: the task of this run has no example to trace the model with. Pass --data.")
    batches = _batches(task, model, examples)
    tell("tracing the model")
    interface = interface_of(model, batches[0])
    program = trace(GraphModel(model, interface), interface.tensors(batches[0]))
    free = dict(zip(interface.names, free_axes(program), strict=True))
    batches[-1] = _with_fewer_targets(interface, batches[-1], free)
    with torch.no_grad():
        expected = [outputs_of(model(batch)) for batch in batches]
    names = ["output"] if len(expected[0]) == 1 else [f"output_{n}" for n in range(len(expected[0]))]
    tell(f"writing {path}")
    answers, count = _written(program, path, to, interface, names)
    worst = _compare(answers, interface, batches, expected)
    described = {
        name: {
            "shape": ["any" if axis in free[name] else size for axis, size in enumerate(tensor.shape)],
            "dtype": str(tensor.dtype).removeprefix("torch."),
        }
        for name, tensor in zip(interface.names, interface.tensors(batches[0]), strict=True)
    }
    shapes = {name: _common_shape([output[n].shape for output in expected]) for n, name in enumerate(names)}
    exported = Exported(
        path, description, described, shapes, [list(batch.inputs.shape) for batch in batches], worst, count
    )
    text = json.dumps(_description(loaded, exported), indent=1, ensure_ascii=False)
    exported.description.write_text(text, encoding="utf-8")
    return exported


def _common_shape(shapes: Sequence[Sequence[int]]) -> list[int | str]:
    return [sizes[0] if len({*sizes}) == 1 else "any" for sizes in zip(*shapes, strict=True)]


def _check_path(path: Path, to: str) -> None:
    if path.suffix != FORMATS[to]:
        raise BadValue(f"out: expected a file that ends in {FORMATS[to]} for {to}, got {str(path)!r}.")
    if not path.absolute().parent.is_dir():
        raise BadValue(f"out: there is no folder {str(path.absolute().parent)!r} to write to.")


def _check_description(path: Path) -> None:
    """Raise if there is a file that no export wrote."""
    if not path.exists():
        return
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        before = None
    if not isinstance(before, dict) or not {"format", "weights_sha256", "inputs", "outputs"} <= before.keys():
        raise BadValue(
            f"out: the description belongs into {str(path)!r}, where there is another file, which export does not "
            f"overwrite. Choose another --out, or move that file."
        )


def _batches(task: Task, model: Model, examples: Sequence[Any]) -> list[Batch]:
    """Batches of several sizes; where examples differ in length, the batches do, too."""
    generator, batches, first = torch.Generator().manual_seed(0), [], 0
    for size in SIZES:
        chosen = [(first + number) % len(examples) for number in range(size)]
        batches.append(task.batch(examples, chosen, generator, model))
        first += size
    return batches


def _with_fewer_targets(interface: Interface, batch: Batch, free: dict[str, list[int]]) -> Batch:
    """The batch with the first half of its targets, where a graph reads any number: a task may have one length only."""
    read = [name for name, (group, _, _) in interface.inputs.items() if group == "answers" and 1 in free[name]]
    if not read:
        return batch
    tensors = dict(zip(interface.names, interface.tensors(batch), strict=True))
    for name in read:
        tensors[name] = tensors[name][:, : -(-tensors[name].shape[1] // 2)]
    return interface.batch(list(tensors.values()))


Answers = Callable[[Sequence[Tensor]], Sequence[Tensor]]


def _written(program: Any, path: Path, to: str, interface: Interface, outputs: list[str]) -> tuple[Answers, int | None]:
    """Write the graph; return the function that the written file computes, and its kinds of operators."""
    if to == "torch":
        torch.export.save(program, path)
        with warnings.catch_warnings():  # torch 2.11 reads its own file into memory of which it then warns
            warnings.filterwarnings("ignore", message="The given buffer is not writable")
            module = torch.export.load(path).module()
        return lambda tensors: module(*tensors), None
    import onnx

    from regard_workbench.training.exporting.onnx_model import Session, operators, to_onnx

    model = to_onnx(program, interface.names, outputs)
    onnx.save(model, str(path))
    session = Session(path)
    return lambda tensors: session(interface.names, tensors), len(operators(model))


def _compare(answers: Answers, interface: Interface, batches: list[Batch], expected: list[tuple[Tensor, ...]]) -> float:
    """The largest difference between the graph and the model, as a share of the largest number of an output."""
    worst = 0.0
    for batch, wanted in zip(batches, expected, strict=True):
        try:
            with torch.no_grad():
                outputs = answers(interface.tensors(batch))
        except RuntimeError as trouble:  # an assertion of the graph about its sizes
            raise ExportDiffers(
                f"export: the graph does not take a batch of {list(batch.inputs.shape)}: {first_line(trouble)}"
            ) from trouble
        for output, reference in zip(outputs, wanted, strict=True):
            if output.shape != reference.shape:
                raise ExportDiffers(
                    f"export: for a batch of {list(batch.inputs.shape)} the graph gives {list(output.shape)}, the "
                    f"model {list(reference.shape)}. This is a mistake in regard; please report it."
                )
            largest = max(1.0, float(reference.abs().max())) if reference.numel() else 1.0
            difference = float((output - reference).abs().nan_to_num(torch.inf).max()) if reference.numel() else 0.0
            worst = max(worst, difference / largest)
    if not worst <= TOLERANCE:
        raise ExportDiffers(
            f"export: the outputs of the graph differ from the model's by {worst:.2g} of the largest, more than "
            f"{TOLERANCE:g}. This is a mistake in regard; please report it."
        )
    return worst


def _description(loaded: Loaded, exported: Exported) -> dict[str, Any]:
    """What a program needs beside the graph: inputs, outputs, the answer in words, and the task's vocabulary."""
    answer = loaded.model.problem.answer
    notes = "Inputs that end in _keep are true where a position is real."
    if "targets" in exported.inputs:
        notes += " Row i of the output sees the targets before i only: append any token and read the last row."
    return {
        "format": exported.path.suffix.removeprefix("."),
        "task": loaded.config.task,
        "model": loaded.config.model,
        "checkpoint": loaded.checkpoint,
        "weights_sha256": loaded.sha256,
        "answer": answer.words,
        "inputs": exported.inputs,
        "outputs": exported.outputs,
        "notes": notes,
        "task_state": loaded.task.state(),
    }
