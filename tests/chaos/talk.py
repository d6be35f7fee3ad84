"""Write the events of one request, as apps, rails, workers, safety and edges would write them."""

import secrets
import time

from schemas.ids import uuid7
from schemas.requests import Deadlines, Delivery, Message, Request
from schemas.side_events import Attached, Detached
from schemas.stream import Chunk, Cleared, Closed, Failed, Finished, Recall, Started, Verdict
from services.runtime.clock import now_ms, now_us

STEP_S = (0.05, 0.10)
"""Minimum and maximum seconds between two chunks of an answer."""


class Talk:
    """One request. Methods such as ``chunk`` return an event about it, and ``post`` writes events to Kafka.

    Attributes:
        slow_s: The longest time so far between one call of ``post`` and the next, in seconds.
    """

    def __init__(self, lab, *, deadlines=None, prompt="What is a log?", **fields):
        self.lab, self.id = lab, uuid7(now_ms(), secrets.randbits(74))
        self.run, self.text, self.seq, self.slow_s, self._last = secrets.token_hex(4), "", 0, 0.0, None
        message = Message(role="user", content=prompt)
        self.request = Request(
            **self.head(), messages=(message,), deadlines=deadlines or Deadlines(total_ms=60_000), **fields
        )

    def head(self):
        return {"request_id": self.id, "tenant": "acme", "at": now_us(), "source": "test"}

    def voice(self, attempt=1):
        return {**self.head(), "attempt": attempt, "run": f"{self.run}/{attempt}"}

    async def post(self, *events):
        now = time.monotonic()
        if self._last is not None:
            self.slow_s = max(self.slow_s, now - self._last)
        self._last = now
        for event in events:
            await self.lab.post(event)

    def ask(self):
        """Return the request, with the present time as the time of its receipt."""
        self.request = Request(**{**_fields(self.request), "at": now_us()})
        return self.request

    def started(self, attempt=1, **fields):
        more = {"input_gate": "hold", "output_check": "on"} | fields
        return Started(
            **self.voice(attempt), model="m", engine="simulated", queue_ms=1.0, received_at=self.request.at,
            delivery=Delivery(), deadlines=self.request.deadlines, **more,
        )  # fmt: skip

    def chunk(self, text, attempt=1):
        event = Chunk(**self.voice(attempt), seq=self.seq, start=len(self.text), text=text)
        self.seq, self.text = self.seq + 1, self.text + text
        return event

    def verdict(self, decision="allow"):
        return Verdict(**self.head(), decision=decision, policy_version="v", refusal="no")

    def finished(self, attempt=1):
        return Finished(**self.voice(attempt), last_seq=self.seq - 1, finish_reason="stop")

    def failed(self):
        return Failed(**self.voice(), error_class="bad_request", message="refused", retryable=False)

    def cleared(self, *, final=False):
        return Cleared(**self.voice(), seq=self.seq - 1, final=final, policy_version="v")

    def recall(self, action):
        return Recall(
            **self.voice(), recall_id=secrets.token_hex(4), start=0, end=3, action=action, replacement="-", rule="r",
            category="c", policy_version="v",
        )  # fmt: skip

    def closed(self):
        return Closed(**self.head(), outcome="completed")

    def attached(self, connection="c"):
        return Attached(**self.head(), connection=connection, transport="sse", partition=0)

    def detached(self, reason="gone", connection="c"):
        return Detached(**self.head(), connection=connection, reason=reason, ops=0, ops_hash="0" * 64)


def _fields(event):
    return {name: getattr(event, name) for name in event.__struct_fields__}
