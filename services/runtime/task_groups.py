"""Start work in a task group that may be ending, and unwrap the errors that a task group raises."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from services.runtime.errors import UserError


def start_in(
    tasks: asyncio.TaskGroup | None, work: Coroutine[Any, Any, None], name: str | None = None
) -> asyncio.Task[None] | None:
    """Start a coroutine in a task group. If there is no group, or the group is ending, only close the coroutine."""
    if tasks is not None:
        try:
            return tasks.create_task(work, name=name)
        except RuntimeError:
            pass
    work.close()
    return None


def leaf_errors(error: BaseException) -> list[BaseException]:
    """Return the errors inside nested exception groups, in order; for a plain error, only that error."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaf_errors(inner)]
    return [error]


def first_error(error: BaseException) -> BaseException:
    """Return the error to report: the first ``UserError`` inside this error, else the first error inside it.

    A task group wraps even a single error in a group. Raise the returned error ``from None`` instead of the group.
    """
    errors = leaf_errors(error)
    return next((leaf for leaf in errors if isinstance(leaf, UserError)), errors[0])
