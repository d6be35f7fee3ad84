import asyncio
from collections.abc import Callable, Iterator
from typing import Final

import orjson

from schemas.side_events import Window
from schemas.topics import LEDGER
from services.books import json_rows
from services.bus import Producer
from services.ledger.faust_app import LedgerApp
from services.ledger.settings import Settings
from services.runtime.clock import steady_us
from services.runtime.metrics import LEDGER_WINDOWS

PUBLISH_S: Final = 1.0
"""Time between two publications of the windows that have changed."""

PUBLISH_MOST: Final = 2_000
"""Maximum number of windows of one partition in one publication."""


class LedgerService:
    """Runs the Faust application, and publishes the sums of changed windows on ``railbus.ledger``.

    Args:
        settings: The ledger's settings.
        source: Client id of the producer that publishes the sums.
        on_ready: Called once, when the ledger is ready.
        copies: Replication factor of the topics that Faust creates.
    """

    def __init__(self, settings: Settings, source: str, on_ready: Callable[[], None], *, copies: int) -> None:
        self._ledger = LedgerApp(settings, on_ready, copies)
        self._producer = Producer(settings.bus, role="ledger", name=source)
        self._partitions = settings.bus.partitions

    @property
    def ready(self) -> bool:
        return self._ledger.ready

    async def run(self) -> None:
        await self._producer.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._publish(), name="ledger-publish")
                tasks.create_task(self._ledger.run(), name="ledger-faust")
        finally:
            await self._producer.stop()

    def report(self, seconds: int) -> bytes:
        """Return the sums of the last ``seconds`` as JSON. They include only the partitions of this process."""
        now_us = steady_us()
        found = json_rows(self._windows(), since_at=now_us - seconds * 1_000_000, until_at=now_us)
        held = sorted(self._ledger.books)
        return orjson.dumps(found | {"partitions": held, "of_partitions": self._partitions})

    def _windows(self) -> Iterator[Window]:
        for books in self._ledger.books.values():
            yield from books.all_windows()

    def _changed(self) -> Iterator[Window]:
        # While partitions get another owner, and after a pause, the next owner may have published newer sums.
        for books in tuple(self._ledger.books.values()):
            for window in books.dirty(PUBLISH_MOST):
                if not self._ledger.ready or self._ledger.books.get(books.number) is not books:
                    return
                self._ledger.pauses.check()
                yield window

    async def _publish(self) -> None:
        while True:
            await asyncio.sleep(PUBLISH_S)
            posted = [await self._producer.post(LEDGER, window) for window in self._changed()]
            await asyncio.gather(*posted)
            LEDGER_WINDOWS.inc(len(posted))
