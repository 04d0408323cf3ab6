"""A trained run on examples: what its model reads, answers, attends to and looks like inside."""
