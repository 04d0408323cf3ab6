"""From a call to a result: which implementation runs, why, and what repeated calls keep."""
