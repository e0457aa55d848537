"""Optional dependencies, imported when first used. This module imports nothing of tfattn."""

import importlib
from types import ModuleType


def find(module: str, extra: str, who: str) -> ModuleType:
    """The module of that name.

    Args:
        module: name to import.
        extra: the extra of this package that installs it.
        who: the function or class that needs it.
    Raises:
        ImportError: it is not installed; the message has the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(f'{who} needs {package}: pip install "tfattn[{extra}]"') from error
