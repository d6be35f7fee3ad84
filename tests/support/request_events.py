"""Make the events that clients, edges and workers write about a made-up request. Each event has the current time."""

import itertools
import secrets
from typing import Any

from schemas.ids import uuid7
from schemas.requests import Deadlines, Delivery, Message, Request
from schemas.side_events import Attached, Detached
from schemas.stream import Chunk, Failed, Finished, Started
from services.runtime.clock import now_ms, now_us

_numbers = itertools.count()


class RequestEvents:
    """A made-up request. The methods return events that an edge or a worker writes about the request."""

    def __init__(self, **fields: Any) -> None:
        self.id = uuid7(now_ms(), secrets.randbits(74))
        about = self.about() | {"messages": (Message(role="user", content="hello"),)}
        self.request = Request(**(about | fields))
        self.run = f"run-{next(_numbers)}"

    def about(self) -> dict[str, Any]:
        return {"request_id": self.id, "tenant": "acme", "at": now_us(), "source": "test"}

    def started(self, attempt: int = 1, **fields: Any) -> Started:
        values = {
            "model": "m",
            "engine": "e",
            "queue_ms": 1.0,
            "received_at": self.request.at,
            "delivery": Delivery(),
            "deadlines": self.request.deadlines,
            "input_gate": "off",
            "output_check": "off",
        }
        return Started(**self.about(), attempt=attempt, run=f"{self.run}/{attempt}", **(values | fields))

    def chunk(self, seq: int, attempt: int = 1) -> Chunk:
        run = f"{self.run}/{attempt}"
        return Chunk(**self.about(), attempt=attempt, run=run, seq=seq, start=seq * 3, text="abc", tokens=1)

    def finished(self, last_seq: int, attempt: int = 1) -> Finished:
        run = f"{self.run}/{attempt}"
        return Finished(**self.about(), attempt=attempt, run=run, last_seq=last_seq, finish_reason="stop")

    def failed(self, attempt: int = 1, **fields: Any) -> Failed:
        values = {"error_class": "unavailable", "message": "refused", "retryable": True}
        return Failed(**self.about(), attempt=attempt, run=f"{self.run}/{attempt}", **(values | fields))

    def attached(self) -> Attached:
        return Attached(**self.about(), connection="c", transport="sse", partition=0)

    def detached(self) -> Detached:
        return Detached(**self.about(), connection="c", reason="gone", ops=0, ops_hash="0" * 64)


__all__ = ["Deadlines", "RequestEvents"]
