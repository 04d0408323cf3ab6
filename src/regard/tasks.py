"""The tasks of the workbench by their public names; they live in `regard_workbench.tasks`."""

from regard_workbench.tasks import *  # noqa: F403
from regard_workbench.tasks import __all__ as __all__
