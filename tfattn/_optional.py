"""Optional dependencies, imported when first used. This module imports nothing of tfattn."""

import importlib
from types import ModuleType


def find(module: str, extra: str, who: str) -> ModuleType:
    """The module of that name; the error of a missing one tells `who` needs which `extra`."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(f'{who} needs {package}: pip install "tfattn[{extra}]"') from error
