"""Where regard takes the place of parts of other libraries: one package for each library."""
