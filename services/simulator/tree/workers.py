"""Generators and the cloud worker: scripted, with the promises of ``services/worker`` towards the log.

A request's offset is committed when the broker has the first event of its execution; a process runs an attempt once; a
``Cancel`` ends a run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from schemas.base import envelope
from schemas.requests import Request, received_us
from schemas.side_events import Cancel
from schemas.stream import Chunk, ErrorClass, Failed, Finished, Started
from schemas.topics import CONTROL, STREAMS
from services.bus import Received, UnreadableRecord
from services.processor import Core, Effect, RecordDone, RecordPosition
from services.simulator.kafka.broker import PARTITIONS, Broker, LogReader, LogRecord, event_of
from services.simulator.kafka.hosts import Process
from services.simulator.kafka.producer import SimulatedProducer
from services.simulator.plan import Fault, Plan, PlannedAnswer

NO_FAULT = Fault("", 0, "", 0, 0)


@dataclass(frozen=True)
class RunRequest:
    """An effect: run this request, which was received at this time by the process's clock."""

    request: Request
    received_us: int
    place: RecordPosition


class WorkerCore(Core):
    """Accepts each attempt once."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, int]] = set()

    def read(self, record: Received | UnreadableRecord, at_us: int, now_us: int) -> Sequence[Effect]:  # noqa: ARG002 - its part
        request, place = event_of(record), RecordPosition.of(record)
        if not isinstance(request, Request) or (request.request_id, request.attempt) in self._seen:
            return (RecordDone(place),)
        self._seen.add((request.request_id, request.attempt))
        return (RunRequest(request, received_us(request, at_us), place),)


class _Execution:
    """One run."""

    def __init__(
        self, request: Request, run: str, answer: PlannedAnswer, fault: Fault, done: Callable[[], None]
    ) -> None:
        self.request = request
        self.run = run
        self.answer = answer
        self.fault = fault
        self.next = 0
        self.start = 0
        self.over = False
        self.done: Callable[[], None] | None = done


class Worker:
    """One worker process: runs requests as the plan says."""

    def __init__(self, process: Process, broker: Broker, plan: Plan, runs: list[str]) -> None:
        self._process = process
        self._broker = broker
        self._plan = plan
        self._runs = runs
        self._faults = {
            fault.target: fault for fault in plan.faults if not fault.service and fault.kind not in {"gone", "verdict"}
        }
        self._executions: dict[str, _Execution] = {}
        self._cancelled: set[tuple[str, int | None]] = set()
        self.producer: SimulatedProducer | None = None
        self.done: Callable[[RecordPosition], None] = lambda _: None
        for number in range(PARTITIONS):
            control = (CONTROL.name, number)
            LogReader(broker, process, control, 0, self._on_control)

    def perform(self, effect: Effect) -> None:
        if not isinstance(effect, RunRequest):
            return
        request = effect.request
        number = self._broker.labels[request.request_id]
        planned = self._plan.requests[number]
        run = f"{self._process.name}/{len(self._runs)}"
        self._runs.append(run)
        fault = self._faults.get(number, NO_FAULT) if request.attempt == 1 else NO_FAULT
        answer = planned.answer if request.attempt == 1 else planned.second_answer
        execution = self._executions[run] = _Execution(request, run, answer, fault, lambda: self.done(effect.place))
        now_us = self._process.now_us
        if not self._cancelled.isdisjoint({(request.request_id, None), (request.request_id, request.attempt)}):
            self._fail(execution, "cancelled")
            return
        self._write(
            execution,
            Started(
                **self._about(execution),
                model="m",
                engine="scripted",
                queue_ms=max(0, now_us - effect.received_us) / 1_000,
                received_at=max(0, effect.received_us),
                delivery=request.delivery,
                deadlines=request.deadlines,
                input_gate="off" if answer.ungoverned else "hold",
                output_check="off" if answer.ungoverned else "on",
            ),
        )
        left_us = effect.received_us + request.deadlines.total_ms * 1_000 - now_us
        self._process.after(max(left_us, 0), self._fail, execution, "timeout")
        if fault.kind != "silence":
            self._process.after(answer.first_us + (fault.for_us if fault.kind == "late" else 0), self._speak, execution)

    def _speak(self, execution: _Execution) -> None:
        if execution.over:
            return
        answer, fault = execution.answer, execution.fault
        if fault.kind == "failure" and execution.next == fault.for_us // 1_000 % 3:
            self._fail(execution, "engine_dead" if fault.for_us % 2 else "unavailable")
            return
        if execution.next == len(answer.pieces):
            self._end(execution)
            last_seq = execution.next - 1
            self._write(execution, Finished(**self._about(execution), last_seq=last_seq, finish_reason="stop"))
            return
        text = answer.pieces[execution.next].replace("~", execution.run.rpartition("/")[2])
        self._write(execution, Chunk(**self._about(execution), seq=execution.next, start=execution.start, text=text))
        execution.next += 1
        execution.start += len(text)
        stalls = fault.kind == "stall" and execution.next == 1 + len(answer.pieces) // 2
        self._process.after(fault.for_us if stalls else answer.gap_us, self._speak, execution)

    def _fail(self, execution: _Execution, error_class: ErrorClass) -> None:
        if not execution.over:
            self._end(execution)
            self._write(
                execution,
                Failed(
                    **self._about(execution),
                    error_class=error_class,
                    message="scripted",
                    retryable=error_class in {"unavailable", "engine_dead"},
                    last_seq=execution.next - 1,
                ),
            )

    def _end(self, execution: _Execution) -> None:
        execution.over = True
        del self._executions[execution.run]

    def _on_control(self, _reader: LogReader, records: list[LogRecord]) -> None:
        for record in records:
            cancel = event_of(record)
            if isinstance(cancel, Cancel):
                self._cancelled.add((cancel.request_id, cancel.attempt))
                for execution in list(self._executions.values()):
                    request = execution.request
                    if request.request_id == cancel.request_id and cancel.attempt in {None, request.attempt}:
                        self._fail(execution, "cancelled")

    def _about(self, execution: _Execution) -> dict[str, Any]:
        head = envelope(execution.request, at=self._process.host.now_us, source=self._process.name)
        return {**head, "attempt": execution.request.attempt, "run": execution.run}

    def _write(self, execution: _Execution, event: Started | Chunk | Finished | Failed) -> None:
        if self.producer is not None:
            done, execution.done = execution.done, None
            self.producer.post(STREAMS, event, acknowledged=done)
