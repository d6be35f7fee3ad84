"""Helpers for ``asyncio.TaskGroup``."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from services.runtime.errors import UserError


def start_in(
    tasks: asyncio.TaskGroup | None, work: Coroutine[Any, Any, None], name: str | None = None
) -> asyncio.Task[None] | None:
    """Start a coroutine in a task group. Return None if there is no group or if the group accepts no more tasks."""
    if tasks is not None:
        try:
            return tasks.create_task(work, name=name)
        except RuntimeError:
            pass
    work.close()
    return None


def leaf_errors(error: BaseException) -> list[BaseException]:
    """Return all errors in an exception group and in the groups inside it."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaf_errors(inner)]
    return [error]


def first_error(error: BaseException) -> BaseException:
    """Return the first ``UserError`` in an exception group. If there is none, return the first error."""
    errors = leaf_errors(error)
    return next((leaf for leaf in errors if isinstance(leaf, UserError)), errors[0])
