"""What a user relies on, written down as JSON, to compare the package before and after a change of its structure.

    python -m tests.recorded before                 # all sections, into the folder `before`
    python -m tests.recorded after surface texts     # some of them
    python -m tests.recorded --compare before after  # exit code 1 and one line for each difference

`surface.py` has the public names, signatures, values and operators; `texts.py` what the command line prints;
`numbers.py` the states of tasks, batches, initial weights and losses; `walks.py` how many modules and functions a call
passes. A section names nothing by its file inside the package: only what is public or a result is compared.
"""
