"""Logging to stderr. Log lines never contain prompts, answers or secrets."""

import logging
import os
import sys
from collections.abc import Mapping
from typing import Final

from services.runtime.errors import UserError

LEVEL_VARIABLE: Final = "RAILBUS_LOG_LEVEL"
"""Environment variable with the lowest level that is logged: ``DEBUG``, ``INFO``, ``WARNING`` or ``ERROR``.

The default is ``INFO`` for a service and ``WARNING`` for a command."""

LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")

_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"


def logger(name: str) -> logging.Logger:
    return logging.getLogger(f"railbus.{name}")


def configure_logging(env: Mapping[str, str] = os.environ) -> None:
    """Send all log lines of at least ``RAILBUS_LOG_LEVEL`` (default INFO) to stderr.

    Raises:
        UserError: The level is not one of DEBUG, INFO, WARNING, ERROR.
    """
    level = env.get(LEVEL_VARIABLE, "").strip().upper() or "INFO"
    if level not in LEVELS:
        raise UserError(f"{LEVEL_VARIABLE}={level!r}: must be one of {', '.join(LEVELS)}")
    logging.basicConfig(stream=sys.stderr, level=level, format=_FORMAT, force=True)
