"""Training runs by their public names; they live in `regard_workbench.training`."""

from regard_workbench.training import *  # noqa: F403
from regard_workbench.training import __all__ as __all__
