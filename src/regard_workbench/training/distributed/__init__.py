"""Checkpoints of models that no single process can hold, for training loops of one's own."""
