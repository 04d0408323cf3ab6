"""Figures that several rooms draw: the style of all of them, learning curves, attention; as files and inline SVG."""
