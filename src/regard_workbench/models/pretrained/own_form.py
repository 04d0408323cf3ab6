"""Models of regard that no library knows, in the Hub's form: `config.json` holds the model's text and its problem.

{"model_type": "regard", "model": "encoder(dim=64, …)", "streams": {"inputs": {"kind": "Tokens", …}}, "answer": {…}}
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import BadValue
from regard.registry import parse, written
from regard_workbench.files import shown
from regard_workbench.models.parts.model import Model, build
from regard_workbench.models.pretrained.files import CONFIG, StoredWeights, read_object
from regard_workbench.models.pretrained.names import NameTable, line
from regard_workbench.models.pretrained.settings import LARGEST
from regard_workbench.tasks import answers
from regard_workbench.tasks.parts import streams
from regard_workbench.tasks.parts.problem import Problem

KIND = "regard"  # the model_type
_WIDTHS = ("dim", "hidden", "width", "size", "length", "distance", "window")
_FEW = 256  # of anything else
_PLAIN = (str, int, float, bool, type(None))


def is_own_form(folder: Path) -> bool:
    """Whether a folder holds a model that regard itself described."""
    return read_object(folder / CONFIG).get("model_type") == KIND


def own_config(model: Model) -> dict[str, Any]:
    """The `config.json` of a model."""
    if model.built_as is None:
        raise BadValue(
            "model: expected one that regard.models.build or regard.train made, so that it can be built again."
        )
    name, options = model.built_as
    odd = [key for key, value in options.items() if not isinstance(value, (*_PLAIN, tuple, list))]
    if odd:
        raise BadValue(
            f"model: its option {odd[0]} is an object; a file can hold text and numbers only. Give its name."
        )
    text = written(name, {key: value for key, value in options.items() if value is not None})
    return {
        "model_type": KIND,
        "architectures": [type(model).__name__],
        "model": text,
        "streams": {key: _described(spec) for key, spec in model.problem.streams.items()},
        "answer": _described(model.problem.answer),
    }


def load_own_form(folder: Path) -> Model:
    """The model of a folder; sizes are compared before memory is taken."""
    config = read_object(folder / CONFIG)
    text, specs = config.get("model"), config.get("streams")
    if not isinstance(text, str) or not isinstance(specs, Mapping) or not specs:
        raise BadValue(
            f"config.json: model and streams: expected the text of a model and its streams in {shown(folder)}."
        )
    stored = StoredWeights(folder)
    _check_sizes(text, len(stored))
    problem = Problem(
        {str(name): _made("streams", spec, vars(streams)) for name, spec in specs.items()},
        _made("answer", config.get("answer"), vars(answers)),
    )
    with torch.random.fork_rng(devices=[]):
        with torch.device("meta"):
            outline = _tensors(build(text, problem))
        table = NameTable([line(name, name) for name in outline], outline)
        table.check(shown(folder), {name: stored_tensor.shape for name, stored_tensor in stored.tensors.items()})
        model = build(text, problem)
    model_tensors = _tensors(model)
    with torch.no_grad():
        for name, tensor in table.to_ours(stored.read).items():
            model_tensors[name].copy_(tensor)
    return model


def own_tensors(model: Model) -> dict[str, Tensor]:
    """The tensors to save, by their names in the model."""
    return {name: tensor.detach().clone().contiguous() for name, tensor in _tensors(model).items()}


def _check_sizes(text: str, tensors: int) -> None:
    """Refuse a text that asks for more layers, or larger ones, than files with so many tensors can hold."""
    for option, value in parse(text)[1].items():
        most = LARGEST if option.endswith(_WIDTHS) else max(_FEW, tensors)
        if isinstance(value, int) and abs(value) > most:
            raise BadValue(f"config.json: model: expected {option} up to {most:,} for these weights, got {value:,}.")


def _tensors(model: Model) -> dict[str, Tensor]:
    """Parameters and persistent buffers; a shared parameter once, under its first name."""
    kept = model.state_dict().keys()
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in kept}
    return {**dict(model.named_parameters()), **buffers}


def _described(spec: Any) -> dict[str, Any]:
    """A stream specification or an answer as plain data."""
    values = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}
    odd = [name for name, value in values.items() if not isinstance(value, (*_PLAIN, tuple, list))]
    cls = vars(streams).get(type(spec).__name__) or vars(answers).get(type(spec).__name__)
    if odd or cls is not type(spec):
        raise BadValue(
            f"model: {type(spec).__name__} cannot be written to config.json; expected streams and answers of "
            "regard.tasks with plain values."
        )
    return {"kind": type(spec).__name__, **values}


def _made(key: str, given: Any, known: Mapping[str, Any]) -> Any:
    """The stream specification or answer that plain data describe."""
    kind = given.get("kind") if isinstance(given, Mapping) else None
    cls = known.get(kind) if isinstance(kind, str) else None
    if not isinstance(cls, type) or not dataclasses.is_dataclass(cls):
        raise BadValue(f"config.json: {key}: expected a kind that regard.tasks knows, got {str(kind)[:80]!r}.")
    names = [field.name for field in dataclasses.fields(cls)]
    values = {name: value for name, value in given.items() if name != "kind"}
    odd = [name for name, value in values.items() if name not in names or not isinstance(value, (*_PLAIN, list))]
    if odd:
        raise BadValue(f"config.json: {key}: {kind} has no plain value {odd[0][:80]!r}.")
    large = [name for name, value in values.items() if isinstance(value, int) and abs(value) > LARGEST]
    if large:
        raise BadValue(f"config.json: {key}: expected {large[0]} up to {LARGEST:,}, got {values[large[0]]:,}.")
    try:
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})
    except TypeError as trouble:
        raise BadValue(f"config.json: {key}: {trouble}.") from None
