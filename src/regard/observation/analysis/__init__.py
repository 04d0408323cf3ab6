"""What maps of attention say: patterns with names, heads that are alike, rollout, flow, alignments, differences."""
