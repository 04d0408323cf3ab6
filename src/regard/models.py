"""The models of the workbench by their public names; they live in `regard_workbench.models`."""

from regard_workbench.models import *  # noqa: F403
from regard_workbench.models import __all__ as __all__
