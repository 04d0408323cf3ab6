"""`register()`: the names that transformers knows regard by."""

from __future__ import annotations

from functools import wraps
from typing import Any

from regard.errors import RegardError
from regard.interop.huggingface.attention import attention_function
from regard.interop.huggingface.masking import mask_function
from regard.interop.huggingface.mechanisms import MechanismChange

NAME = "regard"
PREFIX = f"{NAME}:"


class TransformersMissing(RegardError, ImportError):
    """transformers is not installed, or too old to take an attention from outside."""


def register() -> None:
    """Add `attn_implementation="regard"` and `"regard:NAME(options)"` to transformers. May be called again.

    After it, `from_pretrained(…, attn_implementation="regard")` and `model.set_attn_implementation("regard")` work,
    and `"regard:local(window=256)"` changes the mechanism of a model.
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel, masking_utils
    except ImportError as error:
        raise TransformersMissing(
            "register: regard.interop.huggingface needs transformers 4.56 or newer. Install it with "
            f"pip install 'regard[huggingface]'. The import failed with: {error}"
        ) from error
    AttentionInterface.register(NAME, attention_function())
    AttentionMaskInterface.register(NAME, mask_function(masking_utils))
    _register_mechanisms_on_demand(PreTrainedModel)


def _register_mechanism(name: str) -> None:
    """Add `"regard:NAME(options)"`. Raises for a mechanism that does not exist or does not fit."""
    from transformers import AttentionInterface, AttentionMaskInterface, masking_utils

    change = MechanismChange(name.removeprefix(PREFIX))
    AttentionInterface.register(name, attention_function(change))
    AttentionMaskInterface.register(name, mask_function(masking_utils, change.positional))


def _register_mechanisms_on_demand(model_class: Any) -> None:
    """Let a model that is asked for `"regard:NAME(options)"` register it first.

    The interfaces of transformers are plain dictionaries, and there are more mechanisms with options than can be
    registered beforehand. Every request for a name goes through this method of the model.
    """
    checked = model_class.get_correct_attn_implementation
    if getattr(checked, "registers_mechanisms", False):
        return

    @wraps(checked)
    def get_correct_attn_implementation(self: Any, requested_attention: str | None, *rest: Any, **more: Any) -> Any:
        if isinstance(requested_attention, str) and requested_attention.startswith(PREFIX):
            _register_mechanism(requested_attention)
        return checked(self, requested_attention, *rest, **more)

    get_correct_attn_implementation.registers_mechanisms = True  # type: ignore[attr-defined]
    model_class.get_correct_attn_implementation = get_correct_attn_implementation
