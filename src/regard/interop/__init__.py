"""Regard inside other libraries: `regard.interop.torch` for torch's layers, `regard.interop.huggingface` for transformers."""
