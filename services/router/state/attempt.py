"""One attempt of a request: what it cost and wrote, as the log says. Pure."""

from dataclasses import dataclass, field

from schemas.side_events import AttemptAccount
from schemas.stream import Chunk, Failed, Finished, Speculation, Started, Trigger, Usage
from services.stream.order import ChunkOrder


@dataclass(slots=True)
class AttemptRecord:
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

    def add(self, event: Chunk) -> None:
        """Count a chunk, and those that waited for it."""
        for chunk in (event,) if self.order.take(event) else self.order.add(event):
            if self.first_chunk_at is None:
                self.first_chunk_at = chunk.at
            self.last_chunk_at = chunk.at
            self.tokens += chunk.tokens

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
