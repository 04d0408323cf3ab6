"""Figures of a comparison: one function for each figure, as vector graphics for the report and for papers."""
