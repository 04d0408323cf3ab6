"""Capturing the attention calls of a running model: what is intercepted, what is stored, how weights are computed."""
