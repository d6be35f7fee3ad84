"""A test lab of a tracer on a real broker, with a real router. The test plays all other services."""

import secrets
from collections.abc import Mapping
from typing import ClassVar

from schemas.requests import Deadlines, Request
from schemas.side_events import Account, Detached
from schemas.stream import Cleared, Closed, Verdict
from schemas.topics import REQUESTS
from schemas.trace import traceparent_for
from services.runtime.clock import now_us
from services.stream.latency import LogEvent, latency
from services.tracer.core import LINGER_US
from tests.support.lab import Lab
from tests.support.request_events import RequestEvents

PATIENT = Deadlines(verdict_ms=10_000, ttft_ms=30_000, stall_ms=30_000, total_ms=120_000)
"""The longest deadlines that a policy allows, because a busy machine may take long to write all events of an answer."""


class TracerLab(Lab):
    """A lab that writes the events of requests. A real router closes the requests.

    The lab also computes the times of a request from the log.
    """

    service = "services.tracer"
    settings: ClassVar[Mapping[str, str]] = {
        "RAILBUS_KAFKA_LINGER_MS": "0", "RAILBUS_INPUT_GATE": "hold", "RAILBUS_OUTPUT_CHECK": "on",
    }  # fmt: skip

    async def open(self):
        await super().open()
        await self.start("services.router").ready()

    async def tracer(self, endpoint, **env):
        return await self.run(OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, **env)

    async def play(self, chunks=4, *, traceparent=None, receipt=True):
        """Write the events of one request, one at a time, and return the request's id.

        The tracer waits for the ``Detached`` only until ``LINGER_US`` microseconds after the ``Account``. If the
        ``Detached`` comes too late, as on a busy machine, start again with a new request, and return the id of the new
        request.
        """
        made = RequestEvents(deadlines=PATIENT)
        trace = traceparent or traceparent_for(made.id, secrets.randbits(64))
        await self.producer.send(REQUESTS, made.request, traceparent=trace)
        await self.send(made.started(input_gate="hold", output_check="on"))
        await self.send(Verdict(**made.about(), decision="allow", policy_version="v", total_ms=0.5))
        for seq in range(chunks):
            await self.send(made.chunk(seq))
        run = f"{made.run}/1"
        await self.send(
            made.finished(chunks - 1),
            Cleared(**made.about(), attempt=1, run=run, seq=chunks - 1, final=True, policy_version="v"),
        )
        await self.until(lambda: self.written(Closed, made.id))
        kinds: tuple[type, ...] = (Request, Account)  # of other topics, which the test may read later
        if receipt:
            about = made.about() | {"at": now_us()}
            await self.send(Detached(**about, connection="c", reason="complete", ops=3, ops_hash="0" * 64))
            kinds += (Detached,)
        await self.until(lambda: all(self.written(kind, made.id) for kind in kinds))
        if receipt and self._appended_ms(Detached, made.id) - self._appended_ms(Account, made.id) > LINGER_US / 1_000:
            return await self.play(chunks, traceparent=traceparent)
        return made.id

    def _appended_ms(self, kind, request_id):
        """Return the append time, in milliseconds, of the first event of this kind."""
        return next(
            record.timestamp_ms
            for record in self.log
            if isinstance(record.event, kind) and record.event.request_id == request_id
        )

    def account(self, request_id):
        """Compute the times of a request from what the test has read. Return None if the request is not closed yet."""
        events = [
            LogEvent(record.timestamp_ms, record.event)
            for record in self.log
            if getattr(record.event, "request_id", None) == request_id
        ]
        return latency(request_id, events)


def part_spans(spans):
    return [span for span in spans if "railbus.part" in span.attributes]
