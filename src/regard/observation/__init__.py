"""What goes on inside a model while it answers: where it looked, and how sure one can be of that."""
