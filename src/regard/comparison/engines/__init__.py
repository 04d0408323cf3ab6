"""What runs the jobs of a comparison: processes of this machine, or a cluster."""
