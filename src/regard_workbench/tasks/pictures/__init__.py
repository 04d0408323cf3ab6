"""Pictures as data: patches, how they are cut from pictures and folded back, and what is done with pixels."""
