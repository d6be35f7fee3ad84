"""One attempt of a request: what it cost and wrote, as the log says. Pure."""

from dataclasses import dataclass, field

from schemas.side_events import AttemptAccount
from schemas.stream import Failed, Finished, Speculation, Started, Trigger, Usage
from services.stream.stages import RunTimes


@dataclass(slots=True)
class AttemptRecord:
    """One attempt, by its first run in the log.

    Attributes:
        times: What the stages' recorder keeps of that run.
    """

    attempt: int
    times: RunTimes
    trigger: Trigger | None = None
    started: Started | None = None
    error_class: str | None = None
    usage: Usage = field(default_factory=Usage)
    speculation: Speculation | None = None
    ended: bool = False

    def end(self, event: Finished | Failed) -> None:
        """Note the worker's final event."""
        self.ended = True
        self.usage = event.usage
        if isinstance(event, Failed):
            self.error_class = event.error_class
        else:
            self.speculation = event.speculation

    def account(self) -> AttemptAccount:
        """Return the attempt's account so far. Without a usage from the worker, the tokens read are counted."""
        started, usage = self.started, self.usage
        if not usage.completion_tokens:
            usage = Usage(
                prompt_tokens=usage.prompt_tokens,
                completion_tokens=self.times.tokens,
                cached_tokens=usage.cached_tokens,
            )
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
            error_class=self.error_class,
            usage=usage,
            speculation=self.speculation,
        )
