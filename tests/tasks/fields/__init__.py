"""Tasks of other fields, one file each: what a new task may bring along without touching anything else."""
