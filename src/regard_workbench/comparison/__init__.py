"""Models side by side on one task: the same data, the same budget, several seeds; a table and a report."""
