"""`summarize` in two passes over the scores."""
