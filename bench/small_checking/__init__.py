"""Parts of `bench/small_check.py`."""
