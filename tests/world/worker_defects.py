"""Deliberate defects of workers, to test whether the simulator finds them.

The defects are in accepting, giving up and starting requests, and in committing offsets.
"""

from collections.abc import Callable
from typing import Literal

from services.bus import Received
from services.simulator.kafka.broker import LogReader
from services.simulator.tree.workers import WorkerMember
from services.worker.scheduler import Refusal, Scheduler, Ticket


class RemembersHandedBack(Scheduler):
    """Defect: if a worker gives up a waiting request and reads it again later, the worker does not run the request."""

    def hand_back(self, other: Callable[[Ticket], bool]) -> list[Ticket]:
        dropped = super().hand_back(other)
        for ticket in dropped:
            self._seen.add((ticket.request_id, ticket.attempt), ticket.accepted_us)
        return dropped


class TrustsWhatIsSent(Scheduler):
    """Defect: if a request is read again, its offset is committed, even if none of its events is acknowledged yet."""

    def accept(self, ticket: Ticket, now_us: int) -> Refusal | Literal["waits", "known", "unacknowledged"]:
        answer = super().accept(ticket, now_us)
        return "known" if answer == "unacknowledged" else answer


class LosesSlots(Scheduler):
    """Defect: the slot of a run that was told to stop is never freed."""

    def release(self, ticket: Ticket) -> None:
        if ticket.stopped is None:
            super().release(ticket)


class BatchFirst(Scheduler):
    """Defect: requests start in order of arrival, although interactive requests should start before batch requests."""

    def next(self, now_us: int, *, batch: bool = True) -> tuple[Ticket, Refusal | None] | None:
        held, self._waiting = self._waiting, type(self._waiting)()
        if batch and self._waiting_batch and (not held or self._waiting_batch[0].accepted_us < held[0].accepted_us):
            picked = super().next(now_us, batch=batch)
            self._waiting = held
            return picked
        self._waiting = held
        return super().next(now_us, batch=False)


class RunsTooMuch(Scheduler):
    """Defect: batch runs do not count as used slots when an interactive request starts."""

    @property
    def _interactive_may_start(self) -> bool:
        return len(self._running) - self._running_batch < self._slots


class CommitsWhatWaits(WorkerMember):
    """Defect: the offset of a request is committed as soon as the request is read, although the request still waits."""

    def _on_fetched(self, reader: LogReader, records: list[Received]) -> None:
        super()._on_fetched(reader, records)
        for record in records:
            self.done((record.topic, record.partition, record.offset))
