"""The state of one attempt of a request. No I/O, no clock."""

from dataclasses import dataclass

from msgspec import structs

from schemas.account_details import RunDetails
from schemas.side_events import AttemptAccount
from schemas.stream import Failed, Finished, Started, Trigger, Usage
from services.stream.stages import RunTimes


@dataclass(slots=True)
class AttemptRecord:
    """What the router knows about one attempt.

    An attempt can have more than one run, for example after a restart of the worker. Only the first run on the log
    counts.

    Attributes:
        opened_us: When the attempt's ``Cutover`` was appended, by the broker's clock; None for attempt 1.
        last: The event that ended the attempt; None if the attempt has not ended.
        last_ms: When ``last`` was appended, in milliseconds since the epoch; 0 if ``last`` is None.
    """

    attempt: int
    times: RunTimes
    trigger: Trigger | None = None
    started: Started | None = None
    opened_us: int | None = None
    last: Finished | Failed | None = None
    last_ms: int = 0

    @property
    def ended(self) -> bool:
        return self.last is not None

    def account(self) -> AttemptAccount:
        """Return the costs and results of the attempt so far.

        If the worker has reported no number of completion tokens, the tokens of the chunks are counted instead.
        """
        started, last = self.started, self.last
        usage = Usage() if last is None else last.usage
        if not usage.completion_tokens:
            usage = structs.replace(usage, completion_tokens=self.times.tokens)
        return AttemptAccount(
            attempt=self.attempt,
            run=None if started is None else started.run,
            model=None if started is None else started.model,
            engine=None if started is None else started.engine,
            trigger=self.trigger,
            started_at=None if started is None else started.at,
            first_chunk_at=self.times.first_chunk_at,
            last_chunk_at=self.times.last_chunk_at,
            last_seq=self.times.order.next_seq - 1,
            error_class=last.error_class if isinstance(last, Failed) else None,
            usage=usage,
            speculation=last.speculation if isinstance(last, Finished) else None,
            opened_at=self.opened_us,
            details=self._details(),
        )

    def _details(self) -> RunDetails | None:
        started, times, last = self.started, self.times, self.last
        if started is None or times.started_ms is None:
            return None
        finished = last if isinstance(last, Finished) else None
        return RunDetails(
            source=started.source,
            queue_ms=started.queue_ms,
            started_at=_us(times.started_ms),
            first_chunk_at=None if times.first_ms is None else _us(times.first_ms),
            ended_at=_us(max(self.last_ms, times.last_ms or 0, times.started_ms)),
            finish_reason=None if finished is None else finished.finish_reason,
            timings=None if finished is None else finished.timings,
            retryable=last.retryable if isinstance(last, Failed) else None,
        )


def _us(ms: float) -> int:
    return round(ms * 1_000)
