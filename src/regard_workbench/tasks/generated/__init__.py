"""Generated data: what tasks learn from where no file is given.

Everything here is drawn from a key (`draws`), so it is the same on every machine, and needs no file and no download.
"""
