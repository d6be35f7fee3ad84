"""Defects of workers: what they take, hand back, and begin first."""

from collections.abc import Callable
from typing import Literal

from services.bus import Received
from services.simulator.kafka.broker import LogReader
from services.simulator.tree.workers import WorkerMember
from services.worker.scheduler import Refusal, Scheduler, Ticket


class RemembersHandedBack(Scheduler):
    """Takes a request that it handed back for one that it runs already."""

    def hand_back(self, other: Callable[[Ticket], bool]) -> list[Ticket]:
        dropped = super().hand_back(other)
        for ticket in dropped:
            self._seen.add((ticket.request_id, ticket.attempt), ticket.accepted_us)
        return dropped


class TrustsWhatIsSent(Scheduler):
    """Takes a request whose first event was sent for one that the broker has."""

    def accept(self, ticket: Ticket, now_us: int) -> Refusal | Literal["waits", "known", "unacknowledged"]:
        answer = super().accept(ticket, now_us)
        return "known" if answer == "unacknowledged" else answer


class LosesSlots(Scheduler):
    """Never frees the slot of an execution that was told to stop."""

    def release(self, ticket: Ticket) -> None:
        if ticket.stopped is None:
            super().release(ticket)


class BatchFirst(Scheduler):
    """Begins what came first, whatever its lane."""

    def next(self, now_us: int, *, batch: bool = True) -> tuple[Ticket, Refusal | None] | None:
        held, self._waiting = self._waiting, type(self._waiting)()
        if batch and self._waiting_batch and (not held or self._waiting_batch[0].accepted_us < held[0].accepted_us):
            picked = super().next(now_us, batch=batch)
            self._waiting = held
            return picked
        self._waiting = held
        return super().next(now_us, batch=False)


class RunsTooMuch(Scheduler):
    """Counts no batch execution against the slots."""

    @property
    def _interactive_may_start(self) -> bool:
        return len(self._running) - self._running_batch < self._slots


class CommitsWhatWaits(WorkerMember):
    """Commits a request when it was read."""

    def _on_fetched(self, reader: LogReader, records: list[Received]) -> None:
        super()._on_fetched(reader, records)
        for record in records:
            self.done((record.topic, record.partition, record.offset))
