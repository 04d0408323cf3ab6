"""Engines run the jobs of a comparison: as processes on this machine, or on a Ray cluster."""
