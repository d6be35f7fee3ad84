"""Lazy imports of the packages of the extra ``audit``."""

from importlib import import_module
from typing import Any, Final

from services.runtime.errors import UserError

REMEDY: Final = "pip install 'railbus[audit]'"


def need(module: str) -> Any:
    """Import a module of the extra ``audit``.

    Raises:
        UserError: The module is not installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != module.partition(".")[0]:
            raise
        raise UserError(f"archives need {module.partition('.')[0]}: {REMEDY}") from None
