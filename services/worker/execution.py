"""Run one request on the engine, and write its events to the stream log."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from schemas.stream import Failed, Finished, Started
from schemas.topics import STREAMS
from services.bus import BusError, Producer
from services.runtime import metrics
from services.runtime.clock import steady_us
from services.runtime.logging import logger
from services.worker.engine import Engine, EngineError, GenerationResult, Job
from services.worker.event_builder import EventBuilder
from services.worker.scheduler import STOPPING, Refusal, Ticket, WorkerConfig

_log = logger("worker")

WORKER_FAILED: Final = Refusal("internal", "the worker failed; see its log", retryable=True)


class ExecutionRunner:
    """Runs accepted requests on an engine, and writes their events.

    Args:
        engine: A started engine.
        producer: A started producer.
        config: The worker's configuration.
        source: Name of the service and id of its instance.
        on_taken: Called once per request, when the first event of the run was acknowledged or could not be written.
    """

    def __init__(
        self,
        engine: Engine,
        producer: Producer,
        config: WorkerConfig,
        source: str,
        on_taken: Callable[[Ticket], None],
    ) -> None:
        self._engine = engine
        self._producer = producer
        self._config = config
        self._source = source
        self._on_taken = on_taken

    async def run(self, ticket: Ticket) -> Finished | Failed:
        """Run a request, write the events of the run, and return the last event."""
        # To stop a run, set ``ticket.stopped``, and cancel this task if the run has ``begun`` and is not ``over``.
        # A cancellation before ``begun`` would skip this code. A cancellation after ``over`` could lose the last event.
        events = EventBuilder(ticket, self._source)
        timer = self._expire_later(ticket)
        end = await self._ended(ticket, events)
        timer.cancel()
        _count(end, events)
        if isinstance(end, Failed) and end.error_class != "cancelled":
            _log.info("request %s: run %s failed: %s: %s", end.request_id, end.run, end.error_class, end.message)
        await self._write(ticket, end)
        return end

    async def refuse(self, ticket: Ticket, refusal: Refusal) -> None:
        events = EventBuilder(ticket, self._source)
        failed = events.failed(refusal, steady_us())
        _count(failed, events)
        await self._write(ticket, failed)

    async def _ended(self, ticket: Ticket, events: EventBuilder) -> Finished | Failed:
        ticket.begun = True
        try:
            if ticket.stopped is not None:
                return events.failed(ticket.stopped, steady_us())
            return events.finished(await self._generate(ticket, events), steady_us())
        except asyncio.CancelledError:
            return events.failed(ticket.stopped or STOPPING, steady_us())
        except EngineError as error:
            return events.failed(Refusal.of(error), steady_us())
        except Exception as error:  # noqa: BLE001 - one request's failure must not end the others
            details = error if _log.isEnabledFor(logging.DEBUG) else None
            _log.error("run %s: %s", ticket.run, type(error).__name__, exc_info=details)
            return events.failed(WORKER_FAILED, steady_us())
        finally:
            ticket.over = True

    async def _generate(self, ticket: Ticket, events: EventBuilder) -> GenerationResult:
        request, engine, config, post = ticket.request, self._engine, self._config, self._producer.post
        model = engine.resolve(request.model)
        started = events.started(
            model=model,
            engine=engine.name,
            gate=config.input_gate,
            check=config.output_check,
            now_us=steady_us(),
        )
        await self._write(ticket, started)
        job = Job(
            request_id=request.request_id,
            run=ticket.run,
            model=model,
            messages=request.messages,
            sampling=request.sampling,
            lane=request.lane,
            priority=request.priority,
            expires_us=ticket.expires_us,
        )
        result: GenerationResult | None = None
        items = engine.generate(job)
        try:
            async for item in items:
                if isinstance(item, GenerationResult):
                    result = item
                    continue
                for chunk in events.chunks(item, steady_us()):
                    # Waits only while the producer's buffer is full; the producer handles acknowledgements.
                    await post(STREAMS, chunk, traceparent=ticket.traceparent)
                    if chunk.seq == 0 and not ticket.batch:
                        metrics.GENERATOR_TTFT.observe((chunk.at - ticket.accepted_us) / 1_000)
            for chunk in events.rest(steady_us()):
                await post(STREAMS, chunk, traceparent=ticket.traceparent)
        finally:
            await items.aclose()
        if result is None:
            raise EngineError("internal", "the engine ended the answer without a result", retryable=True)
        return result

    def _expire_later(self, ticket: Ticket) -> asyncio.TimerHandle:
        task = asyncio.current_task()

        def expire() -> None:
            if ticket.stoppable and task is not None:
                total_ms = ticket.request.deadlines.total_ms
                ticket.stopped = Refusal("timeout", f"the deadline of {total_ms} ms has passed", retryable=False)
                task.cancel()

        delay_s = (ticket.expires_us - steady_us()) / 1e6
        return asyncio.get_running_loop().call_later(max(0.0, delay_s), expire)

    async def _write(self, ticket: Ticket, event: Started | Finished | Failed) -> None:
        try:
            acknowledged = await self._producer.post(STREAMS, event, traceparent=ticket.traceparent)
        except BusError as error:
            _log.error("run %s: %s was not written: %s", ticket.run, type(event).__name__, error)
            self._take(ticket)
            return
        if not ticket.taken:
            acknowledged.add_done_callback(lambda _: self._take(ticket))

    def _take(self, ticket: Ticket) -> None:
        if not ticket.taken:
            ticket.taken = True
            self._on_taken(ticket)


def _count(end: Finished | Failed, events: EventBuilder) -> None:
    # Counted once at the end, because an update for each chunk would cost as much as writing the chunk.
    metrics.CHUNKS.inc(events.seq)
    metrics.TOKENS.inc(events.tokens)
    if isinstance(end, Finished):
        metrics.labelled(metrics.EXECUTIONS, "finished").inc()
        if end.speculation is not None:
            metrics.DRAFTED.inc(end.speculation.drafted)
            metrics.ACCEPTED.inc(end.speculation.accepted)
    elif end.error_class == "cancelled":
        metrics.labelled(metrics.EXECUTIONS, "cancelled").inc()
    else:
        metrics.labelled(metrics.EXECUTIONS, "failed").inc()
        metrics.GENERATOR_FAILURES.labels(end.error_class).inc()
