"""`register()`: the names that transformers knows regard by."""

from __future__ import annotations

from regard.errors import RegardError
from regard.interop.huggingface.attention import attention_function
from regard.interop.huggingface.masking import mask_function

NAME = "regard"


class TransformersMissing(RegardError, ImportError):
    """transformers is not installed, or too old to take an attention from outside."""


def register() -> None:
    """Add `attn_implementation="regard"` to transformers."""
    try:
        from transformers import AttentionInterface, AttentionMaskInterface, masking_utils
    except ImportError as error:
        raise TransformersMissing(
            "register: regard.interop.huggingface needs transformers 4.56 or newer. Install it with "
            f"pip install 'regard[huggingface]'. The import failed with: {error}"
        ) from error
    AttentionInterface.register(NAME, attention_function())
    AttentionMaskInterface.register(NAME, mask_function(masking_utils))
