"""The model card (`README.md`) of a saved model: what it is, how to load it, what was measured and how."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from regard.errors import BadValue
from regard_workbench.models.parts.model import Model

OURS = "regard"
THEIRS = "transformers"


def model_card(model: Model, config: Mapping[str, Any], results: Mapping[str, float], signature: str) -> str:
    """The text of a card. Values stand in JSON, which YAML reads as it is, so that no name can end its line."""
    for name, value in results.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise BadValue(f"results: expected a finite number for {name!r}, got {value!r}.")
    library = OURS if config.get("model_type") == OURS else THEIRS
    head: dict[str, Any] = {"library_name": library, "tags": [OURS, str(config.get("model_type"))]}
    if results:
        metrics = [{"type": str(name), "value": float(value)} for name, value in results.items()]
        head["model-index"] = [
            {"name": model.name, "results": [{"task": {"type": "other"}, "dataset": _DATA, "metrics": metrics}]}
        ]
    lines = ["---", *(f"{key}: {json.dumps(value, ensure_ascii=True)}" for key, value in head.items()), "---", ""]
    count = sum(parameter.numel() for parameter in model.parameters())
    lines += [
        f"# {model.name}: {model.problem.answer.words}",
        "",
        f"{count:,} parameters, written by the Python package `regard`.",
        "",
        "```python",
        "from regard_workbench.models import from_pretrained",
        "",
        'model = from_pretrained("NAME")  # a folder or a name of the Hub',
        "```",
        "",
    ]
    if results:
        lines += ["## Results", "", "| metric | value |", "|---|---|"]
        lines += [f"| {_cell(str(name))} | {value:.6g} |" for name, value in results.items()] + [""]
    if signature:
        lines += ["## Signature", "", "What exactly was measured:", "", f"    {' '.join(signature.split())}", ""]
    if library == OURS:
        lines += ["## Model", "", f"    {' '.join(str(config.get('model')).split())}", ""]
    return "\n".join(lines)


_DATA = {"type": "other", "name": "see the signature"}


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
