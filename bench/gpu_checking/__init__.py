"""Parts of `bench/gpu_check.py`."""
