"""Parts of `benchmarks/kernel_variants.py`."""
