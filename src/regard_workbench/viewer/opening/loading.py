"""The model of a Hugging Face folder: local files only, no code from the folder, and no weight that is not in it.

transformers fills missing weights with random numbers and only logs it. The attention of such a model looks like any
other, so a folder whose tensors do not match the model is refused, or, with --allow-missing, labelled.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from regard.errors import BadValue
from regard_workbench.viewer.opening.library_errors import in_words
from regard_workbench.viewer.opening.sizes import check_files, check_parameters

LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
NAMED = 6  # tensors named in a message
IDLE = re.compile(r"(^|\.)pooler\.")  # it reads what attention gave, so a model without it attends the same


@dataclass(frozen=True)
class LoadedPretrained:
    """A model, its configuration, and which of its weights are not from the folder ("" if all are)."""

    model: Any
    config: Any
    doubt: str = ""


def load_model(transformers: Any, folder: str, where: str, allow_missing: bool = False) -> LoadedPretrained:
    """The model of a folder whose files hold exactly the model's tensors.

    allow_missing: load other folders too, and list the random weights in `doubt`.
    """
    check_files(folder, where)
    config = in_words(
        lambda: transformers.AutoConfig.from_pretrained(folder, **LOCAL),
        f"the configuration in {where!r} cannot be read",
    )
    _choose_attention(config)
    cls = _class_of(transformers, config)
    check_parameters(cls, config, folder, where)
    # Tensors of another size are reported like missing ones, instead of raising without a name.
    options = {**LOCAL, "config": config, "output_loading_info": True, "ignore_mismatched_sizes": True}
    model, report = in_words(lambda: cls.from_pretrained(folder, **options), f"the weights in {where!r} cannot be read")
    doubt = _doubt(report, len(model.state_dict()))
    if doubt and not allow_missing:
        raise BadValue(
            f"RUN: the weights in {where!r} are not those of {type(model).__name__}: {doubt}. "
            "Download the whole folder again, or add --allow-missing to show it with a warning on every picture."
        )
    return LoadedPretrained(model, config, doubt)


def _choose_attention(config: Any) -> None:
    """Let the library choose the attention: a folder could name code to download, or a missing package."""
    for name in ("_attn_implementation", "_experts_implementation"):
        if getattr(config, name, None) is not None:
            setattr(config, name, None)  # also set for its parts (text, vision)


def _doubt(report: dict[str, Any], count: int) -> str:
    """Which tensors of the model are not in the folder, and which of the folder are not used; "" if none."""
    sized = [
        f"{name} {tuple(shape)} instead of {tuple(wanted)}"
        for name, shape, wanted in sorted(report.get("mismatched_keys") or (), key=str)
    ]
    unused = [name for name in report.get("unexpected_keys") or () if not IDLE.search(name)]
    faults = (
        (report.get("missing_keys"), f"of {count} tensors missing from the folder and random"),
        (sized, f"of {count} tensors of another size and random"),
        (unused, "tensors of the folder unexpected and not used"),
    )
    return "; ".join(f"{len(names)} {words} ({_listed(names)})" for names, words in faults if names)


def _listed(names: Iterable[str]) -> str:
    ordered = sorted(str(name)[:80] for name in names)
    return ", ".join(ordered[:NAMED]) + (f", … {len(ordered) - NAMED} more" if len(ordered) > NAMED else "")


def _class_of(transformers: Any, config: Any) -> Any:
    """The class that the folder names, if the library has it; it includes the language-model head."""
    named = getattr(config, "architectures", None)
    for name in named if isinstance(named, list | tuple) else ():
        cls = getattr(transformers, name, None) if isinstance(name, str) and name.isidentifier() else None
        if isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel):
            return cls
    return transformers.AutoModel
