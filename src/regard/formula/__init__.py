"""One attention as a value, and its formula in plain torch."""
