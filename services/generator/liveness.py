"""End the worker when its engine dies, even if no request is running."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, Protocol, runtime_checkable

from services.worker.worker import EngineDied

GRACE_S: Final = 5.0
"""How many seconds the running requests have, after the engine has died, to fail and write their ``Failed`` events."""


@runtime_checkable
class MonitoredEngine(Protocol):
    """An engine that can die, for example because it runs in child processes."""

    async def wait_until_dead(self) -> None: ...


async def run_while_alive(work: Coroutine[Any, Any, None], engine: object) -> None:
    """Run ``work``. If the engine dies, wait up to ``GRACE_S`` for ``work`` to end, and then cancel ``work``.

    Raises:
        EngineDied: ``work`` was cancelled because the engine died.
    """
    if not isinstance(engine, MonitoredEngine):
        await work
        return
    working, dying = asyncio.ensure_future(work), asyncio.ensure_future(engine.wait_until_dead())
    try:
        await asyncio.wait((working, dying), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            await asyncio.wait((working,), timeout=GRACE_S)
        if not working.done():
            raise EngineDied("the engine died while no request was running")
        await working
    finally:
        dying.cancel()
        working.cancel()
        await asyncio.gather(working, dying, return_exceptions=True)
