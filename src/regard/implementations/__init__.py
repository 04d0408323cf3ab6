"""Implementations: how an attention is computed. Each says of a request whether it can run it, and runs it."""
