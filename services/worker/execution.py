"""One execution: the engine's steps become events on the stream log."""

import asyncio
import logging
from typing import Final

from schemas.stream import Failed, Finished, Started
from schemas.topics import STREAMS
from services.bus import BusError, Producer
from services.runtime import metrics
from services.runtime.clock import now_us
from services.runtime.logging import logger
from services.worker.desk import STOPPING, Refusal, Ticket
from services.worker.engine import Done, Engine, EngineError, Job
from services.worker.narrator import Narrator
from services.worker.role import Role

_log = logger("worker")

BROKE: Final = Refusal("internal", "the worker failed; see its log", retryable=True)


class Executions:
    """Runs tickets on an engine and writes what comes of it.

    Args:
        engine: Started.
        producer: Started.
        role: What ``Started`` says of gate and check.
        source: Service and instance.
    """

    def __init__(self, engine: Engine, producer: Producer, role: Role, source: str) -> None:
        self._engine = engine
        self._producer = producer
        self._role = role
        self._source = source

    async def run(self, ticket: Ticket) -> Finished | Failed:
        """Writes everything from ``Started`` to the last event, and returns that.

        Whoever stops it says why in the ticket, then cancels the task; but only one that has ``begun`` and is not
        ``over``, because before it the cancellation would skip this code, and after it tear the last event away.
        """
        narrator = Narrator(ticket, self._source)
        timer = self._expire_later(ticket)
        end = await self._ended(ticket, narrator)
        timer.cancel()
        _count(end, narrator)
        if isinstance(end, Failed) and end.error_class != "cancelled":
            _log.info("request %s: run %s failed: %s: %s", end.request_id, end.run, end.error_class, end.message)
        await self._write(ticket, end)
        return end

    async def refuse(self, ticket: Ticket, refusal: Refusal) -> None:
        """Writes that a request will not run."""
        narrator = Narrator(ticket, self._source)
        failed = narrator.failed(refusal, now_us())
        _count(failed, narrator)
        await self._write(ticket, failed)

    async def _ended(self, ticket: Ticket, narrator: Narrator) -> Finished | Failed:
        ticket.begun = True
        try:
            if ticket.stopped is not None:
                return narrator.failed(ticket.stopped, now_us())
            return narrator.finished(await self._generate(ticket, narrator), now_us())
        except asyncio.CancelledError:
            return narrator.failed(ticket.stopped or STOPPING, now_us())
        except EngineError as error:
            return narrator.failed(Refusal.of(error), now_us())
        except Exception as error:  # noqa: BLE001 - one request's misfortune must not be all others'
            details = error if _log.isEnabledFor(logging.DEBUG) else None
            _log.error("run %s: %s", ticket.run, type(error).__name__, exc_info=details)
            return narrator.failed(BROKE, now_us())
        finally:
            ticket.over = True

    async def _generate(self, ticket: Ticket, narrator: Narrator) -> Done:
        """Writes ``Started`` and every chunk."""
        request, engine, role, post = ticket.request, self._engine, self._role, self._producer.post
        model = engine.resolve(request.model)
        started = narrator.started(
            model=model,
            engine=engine.name,
            gate=role.input_gate,
            check=role.output_check,
            now_us=now_us(),
        )
        await self._write(ticket, started)
        job = Job(
            request_id=request.request_id,
            run=ticket.run,
            model=model,
            messages=request.messages,
            sampling=request.sampling,
            lane=request.lane,
            expires_us=ticket.expires_us,
        )
        done: Done | None = None
        items = engine.generate(job)
        try:
            async for item in items:
                if isinstance(item, Done):
                    done = item
                    continue
                for chunk in narrator.chunks(item, now_us()):
                    # Waits only while the producer's buffer is full; acknowledgements are the producer's business.
                    await post(STREAMS, chunk, traceparent=ticket.traceparent)
                    if chunk.seq == 0:
                        metrics.GENERATOR_TTFT.observe((chunk.at - ticket.accepted_us) / 1_000)
        finally:
            await items.aclose()
        if done is None:
            raise EngineError("internal", "the engine ended without saying how", retryable=True)
        return done

    def _expire_later(self, ticket: Ticket) -> asyncio.TimerHandle:
        """No execution outlives its request, even when nobody is there to cancel it."""
        task = asyncio.current_task()

        def expire() -> None:
            if ticket.stoppable and task is not None:
                total_ms = ticket.request.deadlines.total_ms
                ticket.stopped = Refusal("timeout", f"its {total_ms} ms have passed", retryable=False)
                task.cancel()

        delay_s = (ticket.expires_us - now_us()) / 1e6
        return asyncio.get_running_loop().call_later(max(0.0, delay_s), expire)

    async def _write(self, ticket: Ticket, event: Started | Finished | Failed) -> None:
        try:
            await self._producer.post(STREAMS, event, traceparent=ticket.traceparent)
        except BusError as error:
            _log.error("run %s: %s was not written: %s", ticket.run, type(event).__name__, error)


def _count(end: Finished | Failed, narrator: Narrator) -> None:
    """Metrics of one execution, once: counting each chunk would cost as much as writing it."""
    metrics.CHUNKS.inc(narrator.seq)
    metrics.TOKENS.inc(narrator.tokens)
    if isinstance(end, Finished):
        metrics.EXECUTIONS.labels("finished").inc()
        if end.speculation is not None:
            metrics.DRAFTED.inc(end.speculation.drafted)
            metrics.ACCEPTED.inc(end.speculation.accepted)
    elif end.error_class == "cancelled":
        metrics.EXECUTIONS.labels("cancelled").inc()
    else:
        metrics.EXECUTIONS.labels("failed").inc()
        metrics.GENERATOR_FAILURES.labels(end.error_class).inc()
