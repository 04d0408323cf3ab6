"""Pages of the command line: what exists, what each thing does, and a picture of it. Not a verb."""
