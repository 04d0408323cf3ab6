"""A run on disk: settings, metrics and checkpoints that survive a kill, and the checks that every reader makes."""
