"""Regard as the attention of Hugging Face models.

from regard.interop import huggingface
huggingface.register()
model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="regard")
"""

from regard.interop.huggingface.registration import register

__all__ = ["register"]
