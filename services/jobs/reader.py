"""Follow ``railbus.batches`` and know every job."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from schemas.registry import RoleName
from schemas.topics import BATCHES
from services.bus import BusSettings, Received, TailReader, UnreadableRecord, filter_for_role
from services.jobs.job_state import Jobs, JobState

POLL_S: Final = 0.02
"""Interval at which the reader's position is polled; the bus does not signal it."""


class JobReader:
    """The jobs on the topic, from its beginning on.

    Args:
        settings: How to reach the broker.
        role: The service that reads.
        on_change: Called with a job whenever it has changed.
    """

    def __init__(
        self, settings: BusSettings, role: RoleName, on_change: Callable[[JobState], None] = lambda _: None
    ) -> None:
        self.jobs = Jobs()
        self.caught_up = asyncio.Event()
        self._on_change = on_change
        self._changed = asyncio.Event()
        self._tail = TailReader(settings, handler=self._take, record_filter=filter_for_role(role, BATCHES))

    async def run(self) -> None:
        """Read until cancelled.

        Raises:
            UserError: The broker refuses the credentials, or does not let us read.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tail.run())
            await self._tail.follow(BATCHES, 0, "beginning")
            await self.read_to_end()
            self.caught_up.set()
            await asyncio.Event().wait()

    async def read_to_end(self) -> None:
        """Wait until everything is read that is on the topic now."""
        end = await self._tail.end_offset(BATCHES, 0)
        while (self._tail.position(BATCHES, 0) or 0) < end:  # noqa: ASYNC110 - see POLL_S
            await asyncio.sleep(POLL_S)

    async def changed(self, timeout_s: float) -> None:
        """Wait until a job changes, at most for this time."""
        self._changed.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            pass

    def _take(self, records: Sequence[Received | UnreadableRecord]) -> None:
        for record in records:
            if isinstance(record, Received) and (job := self.jobs.feed(record.event, record.timestamp_ms)) is not None:
                self._on_change(job)
        self._changed.set()
