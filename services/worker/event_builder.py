from collections.abc import Iterator
from typing import Final

from schemas.base import RunEnvelope, run_envelope
from schemas.stream import Chunk, Failed, Finished, InputGate, OutputCheck, Started, Usage
from services.worker.engine import EngineStep, GenerationResult
from services.worker.scheduler import Refusal, Ticket

MAX_CHUNK_CHARS: Final = 65_536
"""Maximum number of characters of a chunk, by the schema. The text of a longer step is split into several chunks."""

MAX_MESSAGE_CHARS: Final = 2_000

BATCH_CHUNK_US: Final = 1_000_000
"""Microseconds for which steps of a batch answer are collected into one chunk. Nobody reads such an answer while
it is generated, and each chunk costs work, because it is written, folded, checked and read by every service."""

BATCH_CHUNK_CHARS: Final = 4_096
"""Number of characters at which a chunk of a batch answer is complete, even before ``BATCH_CHUNK_US``."""


class EventBuilder:
    """Builds the events of one run.

    For an interactive request, each engine step with text becomes a chunk. For a batch request, several steps become
    one chunk. After the last step, the caller must call ``rest``.

    Args:
        ticket: The accepted request.
        source: Name of the service and id of its instance, such as ``generator/3fa4c1``.

    Attributes:
        seq: Sequence number of the next chunk.
        length: Number of code points in all chunks built so far.
        tokens: Number of tokens in all steps so far.
    """

    __slots__ = ("_envelope", "_pending", "_prompt_tokens", "_since_us", "_ticket", "length", "seq", "tokens")

    def __init__(self, ticket: Ticket, source: str) -> None:
        self._ticket = ticket
        self._envelope = run_envelope(ticket, at=0, source=source)
        self._pending: EngineStep | None = None
        self._since_us = 0  # when the first pending step came
        self._prompt_tokens = 0
        self.seq = 0
        self.length = 0
        self.tokens = 0

    def started(self, *, model: str, engine: str, gate: InputGate, check: OutputCheck, now_us: int) -> Started:
        request = self._ticket.request
        return Started(
            **self._about(now_us),
            model=model,
            engine=engine,
            queue_ms=max(0, now_us - self._ticket.received_us) / 1_000,
            received_at=max(0, self._ticket.received_us),
            delivery=request.delivery,
            deadlines=request.deadlines,
            input_gate=gate,
            output_check=check,
        )

    def chunks(self, step: EngineStep, now_us: int) -> Iterator[Chunk]:
        """Add a step, and yield the chunks that are now complete."""
        self.tokens += step.tokens
        self._prompt_tokens = step.prompt_tokens
        if self._pending is not None:
            step = _merged(self._pending, step)
            self._pending = None
        else:
            self._since_us = now_us
        if not step.text or self._collects(step, now_us):
            self._pending = step
            return
        yield from self._split(step, now_us)

    def rest(self, now_us: int) -> Iterator[Chunk]:
        """Yield the text that ``chunks`` has not yielded yet."""
        step, self._pending = self._pending, None
        if step is not None and step.text:
            yield from self._split(step, now_us)

    def _collects(self, step: EngineStep, now_us: int) -> bool:
        young = now_us - self._since_us < BATCH_CHUNK_US
        return self._ticket.batch and young and len(step.text) < BATCH_CHUNK_CHARS

    def _split(self, step: EngineStep, now_us: int) -> Iterator[Chunk]:
        text, tokens, drafted, accepted = step.text, step.tokens, step.drafted, step.accepted
        for begin in range(0, len(text), MAX_CHUNK_CHARS):
            part = text[begin : begin + MAX_CHUNK_CHARS]
            yield Chunk(
                **self._about(now_us),
                seq=self.seq,
                start=self.length,
                text=part,
                tokens=tokens,
                drafted=drafted,
                accepted=accepted,
            )
            self.seq += 1
            self.length += len(part)
            tokens = drafted = accepted = 0

    def finished(self, result: GenerationResult, now_us: int) -> Finished:
        return Finished(
            **self._about(now_us),
            last_seq=self.seq - 1,
            finish_reason=result.finish_reason,
            usage=result.usage,
            timings=result.timings,
            speculation=result.speculation,
        )

    def failed(self, refusal: Refusal, now_us: int) -> Failed:
        return Failed(
            **self._about(now_us),
            error_class=refusal.error_class,
            message=refusal.message[:MAX_MESSAGE_CHARS],
            retryable=refusal.retryable,
            last_seq=self.seq - 1,
            usage=Usage(prompt_tokens=self._prompt_tokens, completion_tokens=self.tokens),
            param=refusal.param,
        )

    def _about(self, now_us: int) -> RunEnvelope:
        return {**self._envelope, "at": now_us}


def _merged(first: EngineStep, second: EngineStep) -> EngineStep:
    return EngineStep(
        text=first.text + second.text,
        tokens=first.tokens + second.tokens,
        drafted=first.drafted + second.drafted,
        accepted=first.accepted + second.accepted,
    )
