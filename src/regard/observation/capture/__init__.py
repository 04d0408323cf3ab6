"""Noting the attention calls of a running model: what is intercepted, what is kept, and how weights come of it."""
