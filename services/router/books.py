"""The books of a request's attempts: what each cost and gave, as the log told it. Pure."""

from dataclasses import dataclass, field

from schemas.books import AttemptAccount
from schemas.stream import Chunk, Failed, Finished, Speculation, Started, Trigger, Usage
from services.stream.order import ChunkOrder


@dataclass(slots=True)
class Book:
    """One attempt, by its first run in the log."""

    attempt: int
    trigger: Trigger | None = None
    started: Started | None = None
    first_chunk_at: int | None = None
    last_chunk_at: int | None = None
    order: ChunkOrder = field(default_factory=ChunkOrder)
    tokens: int = 0
    error_class: str | None = None
    usage: Usage = field(default_factory=Usage)
    speculation: Speculation | None = None
    ended: bool = False
    failed: Failed | None = None

    def hear(self, event: Chunk) -> None:
        """Book a chunk, and those that waited for it."""
        if not self.order.take(event):
            for chunk in self.order.hear(event):
                self._count(chunk)
            return
        if self.first_chunk_at is None:
            self.first_chunk_at = event.at
        self.last_chunk_at = event.at
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
            last_seq=self.order.next_seq - 1,
            error_class=self.error_class,
            usage=usage,
            speculation=self.speculation,
        )

    def _count(self, chunk: Chunk) -> None:
        if self.first_chunk_at is None:
            self.first_chunk_at = chunk.at
        self.last_chunk_at = chunk.at
        self.tokens += chunk.tokens
