"""Simulated generators and cloud workers. They use the real scheduler.

They write the answers that the simulation's ``Plan`` prescribes. Keep the behaviour the same as in
``services/worker/worker.py`` and ``services/worker/execution.py``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from schemas.base import envelope
from schemas.requests import Request, received_us
from schemas.side_events import Cancel
from schemas.stream import Chunk, Failed, Finished, Started
from schemas.topics import CONTROL, REQUESTS_BATCH, STREAMS
from services.bus import Received, UnreadableRecord
from services.processor import Core, Effect, RecordDone, RecordPosition
from services.simulator.kafka.broker import PARTITIONS, LogReader, LogRecord, SimulatedBroker, event_of
from services.simulator.kafka.hosts import SimulatedProcess
from services.simulator.kafka.member import SimulatedMember
from services.simulator.kafka.producer import SimulatedProducer
from services.simulator.plan import Fault, Plan, PlannedAnswer
from services.worker.scheduler import STOPPING, RecordPlace, Refusal, Scheduler, Ticket

NO_FAULT = Fault("", 0, "", 0, 0)


@dataclass(frozen=True, slots=True)
class BeginAnswer:
    """An instruction to run a request. If ``refusal`` is set, the worker writes a ``Failed`` event instead."""

    ticket: Ticket
    refusal: Refusal | None


class WorkerCore(Core):
    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._closing = False

    @property
    def backlog(self) -> int:
        return self.scheduler.running

    def read(self, record: Received | UnreadableRecord, at_us: int, now_us: int) -> Sequence[Effect]:
        request, place = event_of(record), RecordPosition.of(record)
        if not isinstance(request, Request):
            return (RecordDone(place),)
        batch = record.topic == REQUESTS_BATCH.name
        received = received_us(request, at_us)
        ticket = Ticket(request, "", None, batch, now_us, received, place=RecordPlace(*place))
        answer = self.scheduler.accept(ticket, now_us)
        if answer == "known":
            return (RecordDone(place),)
        if answer == "unacknowledged":
            return ()
        if isinstance(answer, Refusal):
            return (BeginAnswer(ticket, answer),)
        return self.begin(now_us)

    def lost(self, number: int) -> None:
        """Drop the waiting requests of a lost partition. Its next owner reads them again."""
        self.scheduler.hand_back(lambda ticket: ticket.place is not None and ticket.place.partition == number)

    def begin(self, now_us: int) -> list[BeginAnswer]:
        begun: list[BeginAnswer] = []
        while not self._closing and (picked := self.scheduler.next(now_us)) is not None:
            begun.append(BeginAnswer(*picked))
        return begun

    def close(self) -> None:
        self._closing = True
        self.scheduler.hand_back(lambda _: True)


class WorkerMember(SimulatedMember):
    core: WorkerCore
    worker: "Worker"

    def stop(self, left: Callable[[], None]) -> None:
        self.core.close()
        super().stop(partial(self._stop_rest, left))

    def _stop_rest(self, left: Callable[[], None]) -> None:
        self.worker.stop_all()
        self.process.after(20 * 1_000, left)


class _Execution:
    __slots__ = ("answer", "done", "fault", "next", "over", "request", "run", "start", "ticket")

    def __init__(self, ticket: Ticket, run: str, answer: PlannedAnswer, fault: Fault, done: Callable[[], None]) -> None:
        self.ticket = ticket
        self.request = ticket.request
        self.run = run
        self.answer = answer
        self.fault = fault
        self.next = 0
        self.start = 0
        self.over = False
        self.done: Callable[[], None] | None = done


class Worker:
    def __init__(
        self, process: SimulatedProcess, broker: SimulatedBroker, plan: Plan, core: WorkerCore, runs: list[str],
        on_begun: Callable[[Ticket], None],
    ) -> None:  # fmt: skip
        self._process = process
        self._broker = broker
        self._plan = plan
        self._core = core
        self._runs = runs
        self._on_begun = on_begun
        self._faults = {
            fault.target: fault for fault in plan.faults if not fault.service and fault.kind not in {"gone", "verdict"}
        }
        self._executions: dict[Ticket, _Execution] = {}
        self.producer: SimulatedProducer | None = None
        self.done: Callable[[RecordPosition], None] = lambda _: None
        for number in range(PARTITIONS):
            control = (CONTROL.name, number)
            LogReader(broker, process, control, 0, self._on_control)

    def perform(self, effect: Effect) -> None:
        if not isinstance(effect, BeginAnswer):
            return
        ticket, request = effect.ticket, effect.ticket.request
        number = self._broker.labels[request.request_id]
        planned = self._plan.requests[number]
        run = f"{self._process.name}/{len(self._runs)}"
        self._runs.append(run)
        fault = self._faults.get(number, NO_FAULT) if request.attempt == 1 else NO_FAULT
        answer = planned.answer if request.attempt == 1 else planned.second_answer
        execution = _Execution(ticket, run, answer, fault, partial(self._on_taken, ticket))
        if effect.refusal is not None:
            self._write_failed(execution, effect.refusal)
            return
        self._on_begun(ticket)
        self._executions[ticket] = execution
        now_us = self._process.now_us
        self._write(
            execution,
            Started(
                **self._about(execution),
                model="m",
                engine="scripted",
                queue_ms=max(0, now_us - ticket.received_us) / 1_000,
                received_at=max(0, ticket.received_us),
                delivery=request.delivery,
                deadlines=request.deadlines,
                input_gate="off" if answer.ungoverned else "hold",
                output_check="off" if answer.ungoverned else "on",
            ),
        )
        self._process.after(max(ticket.expires_us - now_us, 0), self._expire, execution)
        if fault.kind != "silence":
            self._process.after(answer.first_us + (fault.for_us if fault.kind == "late" else 0), self._speak, execution)

    def stop_all(self) -> None:
        for ticket in self._core.scheduler.stop_all(STOPPING):
            self._fail(self._executions[ticket], STOPPING)

    def _on_taken(self, ticket: Ticket) -> None:
        for place in self._core.scheduler.acknowledged(ticket):
            self.done(RecordPosition(*place))

    def _speak(self, execution: _Execution) -> None:
        if execution.over:
            return
        answer, fault = execution.answer, execution.fault
        if fault.kind == "failure" and execution.next == fault.for_us // 1_000 % 3:
            died = fault.for_us % 2
            self._fail(execution, Refusal("engine_dead" if died else "unavailable", "scripted", retryable=True))
            return
        if execution.next == len(answer.pieces):
            last_seq = execution.next - 1
            self._write(execution, Finished(**self._about(execution), last_seq=last_seq, finish_reason="stop"))
            self._end(execution)
            return
        text = answer.pieces[execution.next].replace("~", execution.run.rpartition("/")[2])
        self._write(execution, Chunk(**self._about(execution), seq=execution.next, start=execution.start, text=text))
        execution.next += 1
        execution.start += len(text)
        stalls = fault.kind == "stall" and execution.next == 1 + len(answer.pieces) // 2
        self._process.after(fault.for_us if stalls else answer.gap_us, self._speak, execution)

    def _expire(self, execution: _Execution) -> None:
        self._fail(execution, Refusal("timeout", "the deadline has passed", retryable=False))

    def _fail(self, execution: _Execution, refusal: Refusal) -> None:
        if not execution.over:
            self._write_failed(execution, refusal)
            self._end(execution)

    def _write_failed(self, execution: _Execution, refusal: Refusal) -> None:
        failed = Failed(
            **self._about(execution), error_class=refusal.error_class, message=refusal.message,
            retryable=refusal.retryable, last_seq=execution.next - 1,
        )  # fmt: skip
        self._write(execution, failed)

    def _end(self, execution: _Execution) -> None:
        execution.over = execution.ticket.over = True
        del self._executions[execution.ticket]
        self._core.scheduler.release(execution.ticket)
        self._begin()

    def _begin(self) -> None:
        for effect in self._core.begin(self._process.now_us):
            self.perform(effect)

    def _on_control(self, _reader: LogReader, records: list[LogRecord]) -> None:
        for record in records:
            cancel = event_of(record)
            if isinstance(cancel, Cancel):
                dropped, stopped = self._core.scheduler.cancel(cancel, self._process.now_us)
                for ticket in dropped:
                    self.perform(BeginAnswer(ticket, ticket.stopped))
                for ticket in stopped:
                    if ticket.stopped is not None:
                        self._fail(self._executions[ticket], ticket.stopped)
        self._begin()

    def _about(self, execution: _Execution) -> dict[str, Any]:
        head = envelope(execution.request, at=self._process.host.now_us, source=self._process.name)
        return {**head, "attempt": execution.request.attempt, "run": execution.run}

    def _write(self, execution: _Execution, event: Started | Chunk | Finished | Failed) -> None:
        if self.producer is not None:
            done, execution.done = execution.done, None
            self.producer.post(STREAMS, event, acknowledged=done)
