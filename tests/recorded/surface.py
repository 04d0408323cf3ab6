"""Public names with their signatures, the values that users compose, and the operators that torch knows of us."""

import importlib
import inspect
import pickle

import torch

from tests.contracts.entries import BIASES, MASKS, SCORES, Differentiable, Sizes

PUBLIC = [
    "regard",
    "regard.masks",
    "regard.scores",
    "regard.biases",
    "regard.normalizers",
    "regard.nn",
    "regard.nn.ntm",
    "regard.nn.positions",
    "regard.nn.hard",
    "regard.decoding",
    "regard.errors",
    "regard.registry",
    "regard.observation",
    "regard.parallel",
    "regard.interop.torch",
    "regard.interop.huggingface",
    "regard.models",
    "regard.tasks",
    "regard.training",
    "regard_workbench.comparison",
    "regard_workbench.attacks",
    "regard.viewer",
]


def signature_of(thing: object) -> str:
    """The call of a function or class as text; the kind of anything else."""
    if not callable(thing):
        return type(thing).__name__
    try:
        return str(inspect.signature(thing))
    except (TypeError, ValueError):
        return "callable"


def members_of(thing: object) -> dict[str, str]:
    """The public methods of a class by name."""
    if not inspect.isclass(thing):
        return {}
    names = (name for name in dir(thing) if not name.startswith("_") and not hasattr(torch.nn.Module, name))
    return {name: signature_of(inspect.getattr_static(thing, name)) for name in names}


def names() -> dict[str, dict[str, object]]:
    """By module: each public name, its signature and the methods of a class."""
    recorded: dict[str, dict[str, object]] = {}
    for path in PUBLIC:
        module = importlib.import_module(path)
        public = getattr(module, "__all__", None) or [name for name in dir(module) if not name.startswith("_")]
        things = {name: getattr(module, name) for name in sorted(public)}
        recorded[path] = {
            name: [signature_of(thing), members_of(thing)]
            for name, thing in things.items()
            if not inspect.ismodule(thing)
        }
    return recorded


def values() -> dict[str, str]:
    """How each mask, score and bias of the contracts prints after pickling."""
    sizes, recorded = Sizes(), {}
    for name, entry in MASKS.items():
        recorded[f"mask {name}"] = repr(copied(entry.build(sizes, torch.device("cpu"))[0]))
    for name, entry in SCORES.items():
        recorded[f"score {name}"] = repr(copied(entry.build(tensors_for(entry))))
    for name, entry in BIASES.items():
        recorded[f"bias {name}"] = repr(copied(entry.build(tensors_for(entry), sizes)))
    return recorded


def tensors_for(entry: Differentiable) -> dict[str, torch.Tensor]:
    """The tensors of a score or bias by name, the same in every record."""
    torch.manual_seed(0)
    return {name: torch.randn(shape) for name, shape in entry.shapes(Sizes()).items()}


def copied(value: object) -> object:
    """A value after a round trip through pickle."""
    return pickle.loads(pickle.dumps(value))


def operators() -> list[str]:
    """The schemas of `torch.ops.regard.*` that a first import registers."""
    importlib.import_module("regard.nn")
    schemas = torch._C._jit_get_all_schemas()
    return sorted(str(schema) for schema in schemas if schema.name.startswith("regard::"))


def record() -> dict[str, object]:
    """The section `surface`."""
    return {"names": names(), "values": values(), "operators": operators()}
