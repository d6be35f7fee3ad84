"""Bind the generator to the CPU cores in ``RAILBUS_GENERATOR_CORES``."""

import os
import re
from typing import Final

from services.runtime.errors import UserError

MAX_CORE: Final = 4_095

_PART: Final = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?")


def parse_cores(text: str) -> set[int]:
    """Parse a list of CPU cores such as ``0-3,8``. An empty text gives an empty set.

    Raises:
        UserError: The text is not a list of cores.
    """
    found: set[int] = set()
    for part in filter(None, (each.strip() for each in text.split(","))):
        match = _PART.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last <= MAX_CORE:
            raise UserError(f"RAILBUS_GENERATOR_CORES={text[:200]!r}: must be cores such as 0-3,8")
        found |= set(range(first, last + 1))
    return found


def bind_to_cores(text: str) -> None:
    """Bind this process, and processes that it starts later, to CPU cores such as ``0-3,8``.

    Raises:
        UserError: The process cannot be bound to these cores.
    """
    wanted = parse_cores(text)
    if not wanted:
        return
    if not hasattr(os, "sched_setaffinity"):
        raise UserError("RAILBUS_GENERATOR_CORES: this system cannot bind a process to cores; remove it")
    missing = wanted - os.sched_getaffinity(0)
    if missing:
        raise UserError(
            f"RAILBUS_GENERATOR_CORES={text!r}: core {min(missing)} is not there or not allowed; allowed are"
            f" {sorted(os.sched_getaffinity(0))}"
        )
    os.sched_setaffinity(0, wanted)
