"""Tasks that belong to a group which may be ending."""

import asyncio
from collections.abc import Coroutine
from typing import Any


def start_in(
    tasks: asyncio.TaskGroup | None, work: Coroutine[Any, Any, None], name: str | None = None
) -> asyncio.Task[None] | None:
    """Start work in a group; do nothing where there is none or it is ending, which it would answer with an error."""
    if tasks is not None:
        try:
            return tasks.create_task(work, name=name)
        except RuntimeError:
            pass
    work.close()
    return None
