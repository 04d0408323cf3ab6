"""Analyses of attention maps: named patterns, clusters of heads, rollout, flow, alignments, differences."""
