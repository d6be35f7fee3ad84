"""Engines that run in processes of their own, and may die while nobody asks them anything."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, Protocol, runtime_checkable

from services.worker.worker import EngineDied

GRACE_S: Final = 5.0
"""How long open requests have to fail by themselves, each with its own reason, once the engine has died."""


@runtime_checkable
class Mortal(Protocol):
    """An engine that tells when it has died."""

    async def death(self) -> None:
        """Returns when it has."""


async def outlived(work: Coroutine[Any, Any, None], engine: object) -> None:
    """Works as long as the engine lives.

    Raises:
        EngineDied: It died.
    """
    if not isinstance(engine, Mortal):
        await work
        return
    working, dying = asyncio.ensure_future(work), asyncio.ensure_future(engine.death())
    try:
        await asyncio.wait((working, dying), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            await asyncio.wait((working,), timeout=GRACE_S)
        if not working.done():
            raise EngineDied("the engine died while nothing was asked of it")
        await working
    finally:
        dying.cancel()
        working.cancel()
        await asyncio.gather(working, dying, return_exceptions=True)
