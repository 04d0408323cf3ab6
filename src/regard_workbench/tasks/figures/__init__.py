"""Pictures of predictions that are more than a map of weights, one file each."""
