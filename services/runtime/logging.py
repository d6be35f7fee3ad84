"""One log line per happening, to stderr. Never a prompt, an answer or a secret."""

import logging
import os
import sys
from collections.abc import Mapping
from typing import Final

from services.runtime.errors import UserError

LEVEL_VARIABLE: Final = "RAILBUS_LOG_LEVEL"
LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")

_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"


def logger(name: str) -> logging.Logger:
    """The logger ``railbus.NAME``."""
    return logging.getLogger(f"railbus.{name}")


def set_up(env: Mapping[str, str] = os.environ) -> None:
    """Sends every logger's lines to stderr from the level of ``RAILBUS_LOG_LEVEL`` (default INFO) up.

    Raises:
        UserError: The level is none of DEBUG, INFO, WARNING, ERROR.
    """
    level = env.get(LEVEL_VARIABLE, "INFO").upper()
    if level not in LEVELS:
        raise UserError(f"{LEVEL_VARIABLE}={level!r}: must be one of {', '.join(LEVELS)}")
    logging.basicConfig(stream=sys.stderr, level=level, format=_FORMAT, force=True)
