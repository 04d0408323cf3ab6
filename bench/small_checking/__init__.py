"""Parts of `bench/small_check.py`.

Importing them imports nothing of regard: a process first says how many threads may compile and compute.
"""
