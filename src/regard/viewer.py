"""The pages of the workbench by their public names; they live in `regard_workbench.viewer`."""

from regard_workbench.viewer import *  # noqa: F403
from regard_workbench.viewer import __all__ as __all__
