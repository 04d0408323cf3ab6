"""Additive scores: strips, pairs, slopes, and short sequences in one kernel."""
