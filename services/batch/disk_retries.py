"""Repeat disk operations that failed for a reason that may pass, such as a full disk."""

import asyncio
import errno
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

from services.runtime.errors import DISK_FULL
from services.runtime.logging import logger

T = TypeVar("T")

RETRY_S: Final = (0.5, 1.0, 2.0, 5.0)
"""Delays before the retries of a disk operation, in seconds. All later retries use the last delay."""

MAY_PASS: Final = DISK_FULL | {errno.EMFILE, errno.ENFILE, errno.EIO, errno.ESTALE}
"""Numbers of the errors that are no fault of a job. ``repeat`` tries again after them."""

BAD_DISK_TRIES: Final = 10
"""Maximum number of tries after ``EIO``, about 35 seconds: a part of the disk may be unreadable for good."""

_log = logger("batch")


async def repeat(work: Callable[[], Awaitable[T]]) -> T:
    """Call ``work`` until it raises no error of ``MAY_PASS``. Return its result.

    Raises:
        OSError: ``work`` raised another error, such as ``FileNotFoundError``.
    """
    attempt = 0
    while True:
        try:
            return await work()
        except OSError as error:
            if error.errno not in MAY_PASS or (error.errno == errno.EIO and attempt + 1 >= BAD_DISK_TRIES):
                raise
            await wait_for_retry(attempt, error)
            attempt += 1


async def repeat_in_thread(work: Callable[[], T]) -> T:
    """Like ``repeat``, but call ``work`` in a thread."""
    return await repeat(partial(asyncio.to_thread, work))


async def wait_for_retry(attempt: int, error: OSError) -> None:
    """Wait before a disk operation is tried again. Log the first failure, which has ``attempt`` 0."""
    if attempt == 0:
        _log.error("the folder of the jobs: %s; trying again", error.strerror or error)
    await asyncio.sleep(RETRY_S[min(attempt, len(RETRY_S) - 1)])
