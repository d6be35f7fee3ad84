"""Where one request's time went, from its log: parts that add up to what its client waited. No I/O, no clock.

Times inside the log are the broker's append times, to the millisecond: two hosts' clocks are not compared. Only the
first and the last time are the edge's own: when it received the request, and when it had sent the last byte. If the
edge's clock and the broker's differ, the first part takes from the last or gives to it; their sum is right. A
difference that would make one of them negative is noticed, removed, and reported as ``clock_skew_ms``.

The parts are consecutive stretches of time, each named by what the answer waited for. What ran meanwhile and was not
waited for (rails beside prefill, checks beside decoding) costs nothing; ``hidden_rails_ms`` says how much of the rails'
time that was.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from schemas.base import AnyEvent
from schemas.requests import Request
from schemas.side_events import Detached
from schemas.stream import Chunk, Closed, Cutover, Finished, Started, StreamEvent, Verdict
from services.stream.ops import Refuse, Show, Withdraw
from services.stream.screen import Screen

Part = Literal[
    "post",
    "lost attempts",
    "worker",
    "engine queue",
    "prefill",
    "rails",
    "hold-back",
    "decode",
    "final hold-back",
    "close",
    "delivery",
]

WAITS_FOR: Final[dict[Part, str]] = {
    "post": "the edge has the request; the log does not yet",
    "lost attempts": "an attempt ran that was given up",
    "worker": "the bus and the worker's queue; until the engine began",
    "engine queue": "the engine's own queue",
    "prefill": "the first token: prefill, one step, the bus",
    "rails": "the first text is on the log; the verdict is not",
    "hold-back": "the first text waits until safety has cleared it",
    "decode": "the rest of the answer, from its first visible text on",
    "final hold-back": "the last text waits until safety has cleared it",
    "close": "the final check and the router's decision",
    "delivery": "the edge sends the rest to the client",
}
"""What the answer waited for in each part, in order."""

_GOVERNANCE: Final[frozenset[Part]] = frozenset({"rails", "hold-back"})


class LogEvent(NamedTuple):
    """An event of the request, and when the broker appended it, in milliseconds since the epoch."""

    appended_ms: int
    event: AnyEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """One request's time, in milliseconds.

    Attributes:
        parts: Each part that was passed, in order. They add up to ``total_ms``.
        total_ms: From receipt to the last byte sent; to the last part on the log if no client took all of it.
        first_text_ms: From receipt to the first visible text; None when no text was shown.
        governance_first_text_ms: How much later the first text was visible because of rails and safety.
        governance_total_ms: How much later the last text was visible because of them.
        hidden_rails_ms: Time of the rails that nobody waited for.
        plain_decode_ms: What the voice's tokens would have taken without speculation; None where that is not known.
        decode_ms: What they took: from its first chunk to its last.
        tokens: The voice's tokens.
        clock_skew_ms: By how much the edge's clock and the broker's differ at least.
    """

    parts: tuple[tuple[Part, float], ...]
    total_ms: float
    first_text_ms: float | None
    governance_first_text_ms: float
    governance_total_ms: float
    hidden_rails_ms: float
    plain_decode_ms: float | None
    decode_ms: float
    tokens: int
    clock_skew_ms: float

    @property
    def earned_ms(self) -> float | None:
        """Return what speculation saved; None where the plain time between two tokens is not known."""
        return None if self.plain_decode_ms is None else self.plain_decode_ms - self.decode_ms


def latency(request_id: str, events: Iterable[LogEvent], *, plain_token_ms: float | None = None) -> Latency | None:
    """Return where a request's time went; None while it is not closed, or where its ``Request`` is not on the log.

    Args:
        request_id: Whose.
        events: All events of the request. Those of one topic must be in the order of the log.
        plain_token_ms: Time between two tokens without speculation, as `railbus bench engine` measures it.
    """
    times = _Times(request_id, events)
    if times.received_ms is None or times.closed_ms is None:
        return None
    stretches, clock_skew_ms = times.stretches(times.received_ms)
    parts = tuple((name, end - begin) for name, begin, end in stretches)
    begin = times.received_ms + clock_skew_ms
    ends = {name: end for name, _, end in stretches}
    by_name = dict(parts)
    rails_ms = by_name.get("rails", 0.0)
    to_first_ms = sum(by_name.get(name, 0.0) for name in _GOVERNANCE)
    shown_ms = None if times.first_shown_ms is None else max(0.0, times.first_shown_ms - begin)
    late_ms = _after(ends.get("final hold-back"), times.last_chunk_ms)
    return Latency(
        parts=parts,
        total_ms=stretches[-1][2] - begin,
        first_text_ms=shown_ms,
        governance_first_text_ms=min(to_first_ms, shown_ms or 0.0),
        governance_total_ms=min(late_ms, to_first_ms + by_name.get("final hold-back", 0.0)),
        hidden_rails_ms=max(0.0, times.rails_ms - rails_ms),
        plain_decode_ms=None if plain_token_ms is None else plain_token_ms * times.later_tokens,
        decode_ms=_after(times.last_chunk_ms, times.first_chunk_ms),
        tokens=times.tokens,
        clock_skew_ms=clock_skew_ms,
    )


def _after(later_ms: float | None, earlier_ms: float | None) -> float:
    return 0.0 if later_ms is None or earlier_ms is None else max(0.0, later_ms - earlier_ms)


class _Times:
    """The times that divide a request's way, read from its events."""

    def __init__(self, request_id: str, events: Iterable[LogEvent]) -> None:
        self.received_ms: float | None = None
        self.posted_ms: float | None = None
        self.opened_ms: float | None = None
        self.started_ms: float | None = None
        self.queue_ms = 0.0
        self.first_chunk_ms: float | None = None
        self.last_chunk_ms: float | None = None
        self.verdict_ms: float | None = None
        self.rails_ms = 0.0
        self.first_shown_ms: float | None = None
        self.last_shown_ms: float | None = None
        self.closed_ms: float | None = None
        self.sent_ms: float | None = None
        self.tokens = 0
        self.later_tokens = 0
        self._screen = Screen(request_id)
        self._started: dict[str, float] = {}
        self._chunks: list[tuple[float, Chunk]] = []
        self._finished: list[Finished] = []
        for appended_ms, event in events:
            self._take(float(appended_ms), event)
        self._read_voice()

    def _take(self, at_ms: float, event: AnyEvent) -> None:
        match event:
            case Request() if event.attempt == 1 and self.posted_ms is None:
                self.received_ms, self.posted_ms = event.at / 1_000, at_ms
            case Detached() if event.reason == "complete":
                self.sent_ms = max(self.sent_ms or 0.0, event.at / 1_000)
            case StreamEvent():
                self._take_stream(at_ms, event)
            case _:
                pass

    def _take_stream(self, at_ms: float, event: StreamEvent) -> None:
        screen = self._screen
        attempts, verdict, over = screen.attempts, screen.verdict, screen.closed
        ops = screen.feed(event, int(at_ms))  # a part of the answer may be held back by the log's time
        match event:
            case Started():
                self._started.setdefault(event.run, at_ms)
            case Chunk() if over is None:
                self._chunks.append((at_ms, event))
            case Finished():
                self._finished.append(event)
            case Cutover() if screen.attempts > attempts:
                self.opened_ms = at_ms
            case Verdict() if screen.verdict is not verdict:
                self.verdict_ms, self.rails_ms = at_ms, event.total_ms
            case Closed() if screen.closed is not over:
                self.closed_ms = at_ms
            case _:
                pass
        if over is None and any(isinstance(op, Show | Refuse | Withdraw) for op in ops):
            self.first_shown_ms = at_ms if self.first_shown_ms is None else self.first_shown_ms
            self.last_shown_ms = at_ms

    def _read_voice(self) -> None:
        """Keep the chunks of the run that answered; none of a prompt that was denied."""
        voice, verdict = self._screen.voice, self._screen.verdict
        if voice is None or (verdict is not None and verdict.decision == "deny"):
            return
        self.started_ms = self._started.get(voice.run)
        chunks = {chunk.seq: (at_ms, chunk) for at_ms, chunk in reversed(self._chunks) if chunk.run == voice.run}
        if chunks:
            times = [at_ms for at_ms, _ in chunks.values()]
            self.first_chunk_ms, self.last_chunk_ms = min(times), max(times)
            self.tokens = sum(chunk.tokens for _, chunk in chunks.values())
            self.later_tokens = self.tokens - chunks[min(chunks)][1].tokens
        self.queue_ms = next((each.timings.queue_ms for each in self._finished if each.run == voice.run), 0.0)

    def stretches(self, received_ms: float) -> tuple[Sequence[tuple[Part, float, float]], float]:
        """Return each part with its begin and its end, and by how much the edge's clock was corrected."""
        ends = [end for end in self._ends() if end[1] is not None]
        first = ends[0][1] or received_ms
        last = max(end or 0.0 for _, end in ends)
        skew_ms = min(0.0, first - received_ms)  # received after it was on the log: the edge's clock is ahead
        if self.sent_ms is not None and not skew_ms:
            skew_ms = max(0.0, min(last - self.sent_ms, first - received_ms))
        begin = received_ms + skew_ms
        found: list[tuple[Part, float, float]] = []
        for name, at_ms in ends:
            end = max(begin, at_ms or begin)
            found.append((name, begin, end))
            begin = end
        if self.sent_ms is not None:
            found.append(("delivery", begin, max(begin, self.sent_ms + skew_ms)))
        return found, skew_ms

    def _ends(self) -> list[tuple[Part, float | None]]:
        """Return when each part ended, in order; None for a part that was not passed."""
        opened: list[tuple[Part, float | None]] = [("post", self.posted_ms), ("lost attempts", self.opened_ms)]
        close: tuple[Part, float | None] = ("close", self.closed_ms)
        first = self.first_chunk_ms
        if first is None:  # no model text: a refusal, or a failure
            return [*opened, ("rails", self.verdict_ms), close]
        to_first: list[tuple[Part, float | None]] = [
            ("worker", self.started_ms),
            ("engine queue", self._queue_end(first)),
            ("prefill", first),
            ("rails", self._rails_end(first)),
            ("hold-back", self.first_shown_ms),
        ]
        return [*opened, *to_first, ("decode", self.last_chunk_ms), ("final hold-back", self.last_shown_ms), close]

    def _queue_end(self, first_ms: float) -> float | None:
        return None if self.started_ms is None else min(first_ms, self.started_ms + self.queue_ms)

    def _rails_end(self, first_ms: float) -> float | None:
        """Return when the first text no longer waited for the verdict: the gate may be off."""
        if self.verdict_ms is None or self.first_shown_ms is None:
            return self.verdict_ms
        return min(max(first_ms, self.verdict_ms), self.first_shown_ms)
