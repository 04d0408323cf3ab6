"""The workbench behind the command `regard`: models, tasks, training, comparison, attacks, pages.

It stands on the library `regard`, which knows nothing of it. What people call from Python is in `regard` itself:
`regard.train`, `regard.compare`, `regard.models`, `regard.tasks`.
"""
