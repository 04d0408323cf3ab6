"""The command line: one file per verb. `main.py` finds them; nothing else has to be told about a new one."""
