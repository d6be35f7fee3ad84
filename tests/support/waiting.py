"""Wait until something happens, and fail the test if it does not.

The default time limit is long, so that a test does not fail only because the machine is slow.
"""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

T = TypeVar("T")

PATIENCE_S: Final = 60.0


async def until(
    condition: Callable[[], T | Awaitable[T]], what: str = "", *, within_s: float = PATIENCE_S, every_s: float = 0.01
) -> T:
    """Call ``condition`` again and again. Return its first true result, awaited if it is awaitable.

    Raises:
        AssertionError: There was no true result within ``within_s`` seconds. The message contains ``what``.
    """
    end = time.monotonic() + within_s
    while True:
        value: Any = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value  # type: ignore[no-any-return]
        assert time.monotonic() < end, f"not within {within_s} s: {what or condition}"
        await asyncio.sleep(every_s)


def wait_until(condition: Callable[[], T], what: str, within_s: float = PATIENCE_S, *, every_s: float = 0.02) -> T:
    """Do the same as ``until``, in a test without an event loop."""
    end = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {within_s} s: {what}"
        time.sleep(every_s)
    return value


async def comes_true(condition: Callable[[], bool], within_s: float, every_s: float = 0.05) -> bool:
    """Wait until the condition is true, for ``within_s`` seconds at most. Return whether it became true."""
    end = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(every_s)
    return True


class News:
    """Lets coroutines wait for a condition. They check the condition again after each call of ``tell``."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def tell(self) -> None:
        self._event.set()

    async def until(
        self, condition: Callable[[], T], what: str = "", *, within_s: float = PATIENCE_S, pause_s: float = 0.0
    ) -> T:
        """Call ``condition`` at once, and ``pause_s`` seconds after each ``tell``. Return its first true result.

        Raises:
            AssertionError: There was no true result within ``within_s`` seconds. The message contains ``what``.
        """
        end = time.monotonic() + within_s
        while not (value := condition()):
            self._event.clear()
            left_s = end - time.monotonic()
            try:
                await asyncio.wait_for(self._event.wait(), max(left_s, 0))
            except TimeoutError:
                raise AssertionError(f"not within {within_s} s: {what or condition}") from None
            await asyncio.sleep(pause_s)
        return value
