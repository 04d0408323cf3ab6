"""An exported graph as an ONNX file, and the same graph run by onnxruntime."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from regard.errors import Unsupported
from regard_workbench.training.exporting.program import first_line

OPSET = 20


def to_onnx(program: ExportedProgram, inputs: Sequence[str], outputs: Sequence[str]) -> Any:
    """The graph as an ONNX model (`onnx.ModelProto`) of standard operators."""
    try:
        # With gradients torch would split the body of a scan into a forward and a backward part, which hand on sizes.
        with torch.no_grad(), _quiet():
            exported = torch.onnx.export(
                program,
                input_names=list(inputs),
                output_names=list(outputs),
                dynamo=True,
                verbose=False,
                opset_version=OPSET,
            )
    except ModuleNotFoundError:
        raise
    except Exception as trouble:
        raise Unsupported(f"export: ONNX cannot express this model: {first_line(trouble)}") from trouble
    assert exported is not None
    return exported.model_proto


def operators(model: Any) -> list[str]:
    """The kinds of operators of a model; those of another domain than ONNX's own as `domain::name`."""
    local = {(function.domain, function.name) for function in model.functions}
    nodes = [node for function in model.functions for node in _nodes(function)] + list(_nodes(model.graph))
    kinds = {(node.domain, node.op_type) for node in nodes} - local
    return sorted(name if domain in ("", "ai.onnx") else f"{domain}::{name}" for domain, name in kinds)


def _nodes(graph: Any) -> Iterator[Any]:
    """Every node of a graph, those inside of loops and branches included."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)


class Session:
    """A model in onnxruntime, on one thread of the CPU."""

    def __init__(self, model: Any | Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # it warns of constants that its own optimiser removes
        options.intra_op_num_threads = 1
        source = str(model) if isinstance(model, Path) else model.SerializeToString()
        self.session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        self.inputs = [graph_input.name for graph_input in self.session.get_inputs()]

    def __call__(self, names: Sequence[str], tensors: Sequence[Tensor]) -> list[Tensor]:
        """The outputs for inputs by name; a name that the graph does not read is left out."""
        arrays = {
            name: tensor.cpu().numpy() for name, tensor in zip(names, tensors, strict=True) if name in self.inputs
        }
        return [torch.from_numpy(array) for array in self.session.run(None, arrays)]


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the remarks of the exporter, which are about its own insides."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
