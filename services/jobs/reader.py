"""Read ``railbus.batches`` and keep the state of every job."""

import asyncio
from collections.abc import Callable, Sequence

from schemas.registry import RoleName
from schemas.topics import BATCHES
from services.bus import BusSettings, LogTime, Received, TailReader, UnreadableRecord, filter_for_role
from services.jobs.job_state import Jobs, JobState
from services.runtime.clock import steady_us


class JobReader:
    """A reader of ``railbus.batches`` that keeps the state of every job in ``jobs``.

    Args:
        on_change: Called with the new state of a job after each change.
    """

    def __init__(
        self, settings: BusSettings, role: RoleName, on_change: Callable[[JobState], None] = lambda _: None
    ) -> None:
        self.jobs = Jobs()
        self.caught_up = asyncio.Event()
        self._on_change = on_change
        self._log_time = LogTime()
        self._changed = asyncio.Event()
        self._tail = TailReader(settings, handler=self._take, record_filter=filter_for_role(role, BATCHES))

    async def run(self) -> None:
        """Read until cancelled.

        Raises:
            UserError: The broker refuses the credentials, or the permission to read the topic.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tail.run())
            await self._tail.follow(BATCHES, 0, "beginning")
            await self.read_to_end()
            self.caught_up.set()
            await asyncio.Event().wait()

    def now_ms(self) -> int:
        """Estimate the present time of the broker's clock, in milliseconds, from the records that were read."""
        # Of a job that this process runs, it has read a new record: its own progress event. Before that, an old record
        # makes the time too early, and no job expires too early.
        return self._log_time.now_ms(steady_us() // 1_000)

    async def read_to_end(self) -> None:
        """Wait until ``run`` has read all records that are on the topic at the time of this call."""
        await self._tail.read_through({(BATCHES, 0): await self._tail.end_offset(BATCHES, 0)})

    async def changed(self, timeout_s: float) -> None:
        """Wait until new records have been read, or until ``timeout_s`` seconds have passed."""
        self._changed.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            pass

    def _take(self, records: Sequence[Received | UnreadableRecord]) -> None:
        read_ms = steady_us() // 1_000
        for record in records:
            self._log_time.note(record.timestamp_ms, read_ms)
            if isinstance(record, Received) and (job := self.jobs.feed(record.event, record.timestamp_ms)) is not None:
                self._on_change(job)
        self._changed.set()
