"""Figures of predictions that are more than a map of weights, and the colours of all figures."""
