"""Save a model in the Hub's form: `config.json`, safetensors, the tokenizer's files and a model card.

A model that was loaded from a family of transformers is saved as that family, so that transformers loads it again.
Any other model of regard is saved in a form of its own, which `from_pretrained` of regard reads.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.errors import BadValue, Unsupported
from regard.support.arguments import whole_number
from regard_workbench.models.parts.model import Model
from regard_workbench.models.pretrained.card import model_card
from regard_workbench.models.pretrained.family import ROWS
from regard_workbench.models.pretrained.files import CONFIG, INDEX, WEIGHTS
from regard_workbench.models.pretrained.loading import Pretrained
from regard_workbench.models.pretrained.own_form import own_config, own_tensors
from regard_workbench.models.pretrained.tokenizer import FILES

CARD = "README.md"
LARGEST_FILE = 5_000_000_000  # bytes of weights in one file


def save_pretrained(
    model: Model,
    folder: str | Path,
    *,
    results: Mapping[str, float] | None = None,
    signature: str = "",
    largest_file: int = LARGEST_FILE,
) -> Path:
    """Write a model to a folder, which is created; files of the same names are replaced.

    results: what was measured, by metric, for the model card; signature: how it was measured, in one line.
    largest_file: bytes of weights in one file; a larger model is written as several with an index.
    """
    if not isinstance(model, Model):
        raise BadValue(f"model: expected a model of regard.models, got {type(model).__name__}.")
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise BadValue(f"folder: {path} is a file.")
    origin = model.pretrained
    config, tensors = (own_config(model), own_tensors(model)) if origin is None else _as_family(model, origin)
    card = model_card(model, config, results or {}, signature)
    path.mkdir(parents=True, exist_ok=True)
    write_text(path / CONFIG, json.dumps(config, indent=2, sort_keys=True) + "\n")
    _write_weights(path, tensors, whole_number("largest_file", largest_file, 1))
    write_text(path / CARD, card)
    if origin is not None and origin.folder.resolve() != path.resolve():
        for name in FILES:
            if (origin.folder / name).is_file():
                shutil.copyfile(origin.folder / name, path / name)
    return path


def push_to_hub(
    model: Model,
    name: str,
    *,
    private: bool = False,
    token: str | None = None,
    message: str = "Upload a model of regard",
    **card: Any,
) -> str:
    """Save a model and upload it to the Hub as `name`; returns the address of the commit. `card`: as `save_pretrained`.

    `token`: None takes the one that `hf auth login` stored.
    """
    return upload(
        lambda folder: save_pretrained(model, folder, **card), name, private=private, token=token, message=message
    )


def upload(
    write: Callable[[str], object],
    name: str,
    *,
    private: bool = False,
    token: str | None = None,
    message: str = "Upload a model of regard",
) -> str:
    """Upload what `write` writes into a folder to the Hub as `name`; returns the address of the commit."""
    try:
        import huggingface_hub
    except ImportError:
        raise Unsupported(
            "push_to_hub: needs the package huggingface-hub. Install the extra: pip install 'regard[huggingface]'."
        ) from None
    with tempfile.TemporaryDirectory(prefix="regard-") as folder:
        write(folder)
        hub = huggingface_hub.HfApi(token=token)
        where = hub.create_repo(name, private=private, exist_ok=True)
        return str(hub.upload_folder(repo_id=where.repo_id, folder_path=folder, commit_message=message))


def _as_family(model: Model, origin: Pretrained) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The configuration and the tensors that transformers expects."""
    parameters = dict(model.named_parameters())
    base = origin.family.architectures[origin.architecture] == ROWS
    prefix = "" if base else origin.family.prefix
    tensors = origin.table(prefix, parameters).to_theirs(parameters)
    dtype = next(iter(parameters.values())).dtype
    for name, tensor in origin.left.items():
        tensors.setdefault(_moved(name, origin, prefix), tensor.to(dtype).contiguous())
    config = dict(origin.config)
    config.pop("torch_dtype", None)
    config |= {"architectures": [origin.architecture], "dtype": str(dtype).removeprefix("torch.")}
    return config, tensors


def _moved(name: str, origin: Pretrained, prefix: str) -> str:
    """The name of a tensor without a place, with the prefix of the new file."""
    return prefix + name.removeprefix(origin.family.prefix) if name.startswith(origin.family.prefix) else name


def _write_weights(folder: Path, tensors: Mapping[str, Tensor], largest: int) -> None:
    from safetensors.torch import save_file

    shards: list[dict[str, Tensor]] = [{}]
    room = largest
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        if size > room and shards[-1]:
            shards.append({})
            room = largest
        shards[-1][name] = tensor.cpu()
        room -= size
    names = [WEIGHTS]
    if len(shards) > 1:
        names = [f"model-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(1, len(shards) + 1)]
    for name, shard in zip(names, shards, strict=True):
        partial = folder / f".{name}.part"
        save_file(shard, partial, metadata={"format": "pt"})
        shutil.copymode(folder / CONFIG, partial)  # the library lets only the owner read it
        os.replace(partial, folder / name)
    if len(shards) > 1:
        places = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
        total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        index = {"metadata": {"total_size": total}, "weight_map": places}
        write_text(folder / INDEX, json.dumps(index, indent=2, sort_keys=True) + "\n")
        (folder / WEIGHTS).unlink(missing_ok=True)
    else:
        (folder / INDEX).unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    partial = path.with_name(f".{path.name}.part")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
