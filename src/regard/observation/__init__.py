"""Observing what a model attends to: capture, weights, analysis and figures."""
