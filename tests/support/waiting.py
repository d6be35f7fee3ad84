"""Waiting for what must happen. A test that waits longer has failed; nothing here measures speed."""

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
    """Ask again and again; return the first true value.

    Raises:
        AssertionError: The condition did not become true; the message is ``what``.
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
    """Do the same as ``until`` in a test without an event loop."""
    end = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {within_s} s: {what}"
        time.sleep(every_s)
    return value


async def comes_true(condition: Callable[[], bool], within_s: float, every_s: float = 0.05) -> bool:
    """Return whether the condition became true in time."""
    end = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(every_s)
    return True


class News:
    """Wakes who waits for a condition, whenever there is something new to look at."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def tell(self) -> None:
        self._event.set()

    async def until(
        self, condition: Callable[[], T], what: str = "", *, within_s: float = PATIENCE_S, pause_s: float = 0.0
    ) -> T:
        """Look after each piece of news, ``pause_s`` later; return the first true value."""
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
