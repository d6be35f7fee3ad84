"""The books of a request's attempts: what each cost and gave, as the log told it. Pure."""

from dataclasses import dataclass, field

from schemas.books import AttemptAccount
from schemas.stream import Chunk, Failed, Finished, Speculation, Started, Trigger, Usage


@dataclass(slots=True)
class Book:
    """One attempt. Only its first execution in the log is booked: no other is ever heard."""

    attempt: int
    trigger: Trigger | None = None
    started: Started | None = None
    first_chunk_at: int | None = None
    last_chunk_at: int | None = None
    last_seq: int = -1
    tokens: int = 0
    error_class: str | None = None
    usage: Usage = field(default_factory=Usage)
    speculation: Speculation | None = None
    ended: bool = False
    failed: Failed | None = None

    def is_of(self, run: str) -> bool:
        """Whether this is the booked execution; a failure before any ``Started`` is the attempt's own."""
        return self.started is None or self.started.run == run

    def start(self, event: Started) -> None:
        """The first ``Started`` counts."""
        if self.started is None:
            self.started = event

    def hear(self, event: Chunk) -> None:
        """A chunk; one that was heard already changes nothing."""
        if event.seq <= self.last_seq:
            return
        if self.first_chunk_at is None:
            self.first_chunk_at = event.at
        self.last_chunk_at = event.at
        self.last_seq = event.seq
        self.tokens += event.tokens

    def end(self, event: Finished | Failed) -> None:
        """The worker's last word."""
        if self.ended:
            return
        self.ended = True
        self.usage = event.usage
        if isinstance(event, Failed):
            self.failed = event
            self.error_class = event.error_class
        else:
            self.speculation = event.speculation

    def account(self) -> AttemptAccount:
        """As it stands now; when the worker never told its usage, the tokens that were heard count."""
        started = self.started
        usage = self.usage
        if not usage.completion_tokens:
            usage = Usage(
                prompt_tokens=usage.prompt_tokens,
                completion_tokens=self.tokens,
                cached_tokens=usage.cached_tokens,
            )
        return AttemptAccount(
            attempt=self.attempt,
            run=None if started is None else started.run,
            model=None if started is None else started.model,
            engine=None if started is None else started.engine,
            trigger=self.trigger,
            started_at=None if started is None else started.at,
            first_chunk_at=self.first_chunk_at,
            last_chunk_at=self.last_chunk_at,
            last_seq=self.last_seq,
            error_class=self.error_class,
            usage=usage,
            speculation=self.speculation,
        )
