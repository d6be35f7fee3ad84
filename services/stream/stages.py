"""Record the append times of the events that mark the progress of a request."""

from collections.abc import Sequence
from typing import Final, Literal

from schemas.stream import Chunk, Closed, Cutover, Finished, Started, StreamEvent, Verdict
from services.stream.ops import Op, Refuse, Show, Withdraw
from services.stream.order import ChunkOrder
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

Stretch = tuple[Part, float, float]
"""A part of a request's time: its name, start and end. Start and end are in milliseconds since the epoch."""

_SHOWN: Final = frozenset({Show, Refuse, Withdraw})


class RunTimes:
    """Times and token counts of an attempt's first run.

    Attributes:
        started_ms: Append time of ``Started``.
        first_ms: Append time of the first chunk.
        last_ms: Append time of the newest chunk before ``Closed``.
        tokens: Number of tokens in all chunks, also in those after ``Closed``.
        answer_tokens: Number of tokens in the chunks before ``Closed``.
        first_tokens: Number of tokens in the first chunk.
        queue_ms: How long the run waited in the engine's queue, as the worker reports.
        longest_pause_ms: Longest time between two chunks before ``Closed``.
        first_chunk_at: Time of the first chunk by the worker's clock, in microseconds since the epoch.
        last_chunk_at: Time of the newest chunk, also of one after ``Closed``, by the worker's clock, in microseconds
            since the epoch.
    """

    __slots__ = (
        "answer_tokens",
        "finished",
        "first_chunk_at",
        "first_ms",
        "first_tokens",
        "last_chunk_at",
        "last_ms",
        "longest_pause_ms",
        "order",
        "queue_ms",
        "started_ms",
        "tokens",
    )

    def __init__(self) -> None:
        self.started_ms: float | None = None
        self.first_ms: float | None = None
        self.last_ms: float | None = None
        self.tokens = 0
        self.answer_tokens = 0
        self.first_tokens = 0
        self.queue_ms = 0.0
        self.longest_pause_ms = 0.0
        self.first_chunk_at: int | None = None
        self.last_chunk_at: int | None = None
        self.order = ChunkOrder()
        self.finished = False

    def add(self, event: Chunk, at_ms: float, *, closed: bool) -> None:
        if self.order.take(event):
            self._count(event, at_ms, closed)
        else:
            for chunk in self.order.add(event):
                self._count(chunk, at_ms, closed)

    def _count(self, chunk: Chunk, at_ms: float, closed: bool) -> None:
        tokens = chunk.tokens
        self.tokens += tokens
        self.last_chunk_at = chunk.at
        if self.first_chunk_at is None:
            self.first_chunk_at = chunk.at
        if closed:
            return
        self.answer_tokens += tokens
        if self.first_ms is None or self.last_ms is None:
            self.first_ms = at_ms
            self.first_tokens = tokens
        elif at_ms - self.last_ms > self.longest_pause_ms:
            self.longest_pause_ms = at_ms - self.last_ms
        self.last_ms = at_ms


class StageRecorder:
    """Feeds the events of a request to a ``Screen``, and records when important events were appended to the log.

    Args:
        screen: The screen of the request. The caller must not feed events to the screen directly.

    Attributes:
        posted_ms: Append time of the ``Request``. The caller must set this attribute.
        verdict_ms: Append time of the verdict.
        rails_ms: How long the rails (the checks of the prompt) took, as the verdict reports.
        first_shown_ms: Append time of the event that made the first text visible.
        last_shown_ms: Append time of the event that made the newest text visible.
        closed_ms: Append time of the ``Closed`` that ended the request.
        runs: Times of the first run of each attempt, by the number of the attempt.
    """

    __slots__ = (
        "_opened_ms",
        "_run_ids",
        "closed_ms",
        "first_shown_ms",
        "last_shown_ms",
        "posted_ms",
        "rails_ms",
        "runs",
        "screen",
        "verdict_ms",
    )

    def __init__(self, screen: Screen) -> None:
        self.screen = screen
        self.posted_ms: float | None = None
        self._opened_ms: dict[int, float] = {}  # by attempt, the append time of the ``Cutover`` to it
        self.verdict_ms: float | None = None
        self.rails_ms = 0.0
        self.first_shown_ms: float | None = None
        self.last_shown_ms: float | None = None
        self.closed_ms: float | None = None
        self.runs: dict[int, RunTimes] = {}
        self._run_ids: dict[int, str] = {}

    def feed(self, event: StreamEvent, log_ms: int) -> tuple[Op, ...]:
        screen = self.screen
        over = screen.closed is not None
        if type(event) is Chunk:
            ops = screen.feed(event, log_ms)
            if self._run_ids.get(event.attempt) == event.run:
                self.runs[event.attempt].add(event, log_ms, closed=over)
        else:
            ops = self._feed_other(event, log_ms)
        if ops and not over:
            for op in ops:
                if type(op) in _SHOWN:
                    if self.first_shown_ms is None:
                        self.first_shown_ms = log_ms
                    self.last_shown_ms = log_ms
                    break
        return ops

    def _feed_other(self, event: StreamEvent, log_ms: int) -> tuple[Op, ...]:
        screen = self.screen
        attempts, verdict, closed = screen.attempts, screen.verdict, screen.closed
        ops = screen.feed(event, log_ms)
        match event:
            case Started():
                if event.attempt not in self._run_ids:
                    self._run_ids[event.attempt] = event.run
                    self.run(event.attempt).started_ms = log_ms
            case Finished() if self._run_ids.get(event.attempt) == event.run:
                run = self.runs[event.attempt]
                if not run.finished:
                    run.finished, run.queue_ms = True, event.timings.queue_ms
            case Cutover() if screen.attempts > attempts:
                self._opened_ms[event.attempt] = log_ms
            case Verdict() if screen.verdict is not verdict:
                self.verdict_ms, self.rails_ms = log_ms, event.total_ms
            case Closed() if screen.closed is not closed:
                self.closed_ms = log_ms
            case _:
                pass
        return ops

    def run(self, attempt: int) -> RunTimes:
        """Return the times of an attempt's first run. If no run has started, return an empty ``RunTimes``."""
        found = self.runs.get(attempt)
        if found is None:
            found = self.runs[attempt] = RunTimes()
        return found

    @property
    def voice_run(self) -> RunTimes | None:
        """Times of the run that answered; None if no run answered, or if the prompt was denied."""
        screen = self.screen
        voice, verdict = screen.voice, screen.verdict
        if voice is None or (verdict is not None and verdict.decision == "deny"):
            return None
        return self.runs.get(voice.attempt)

    def stretches(self, received_ms: float, sent_ms: float | None = None) -> tuple[Sequence[Stretch], float]:
        """Divide the time of a closed request into parts.

        Args:
            received_ms: When the edge received the request, by the edge's clock.
            sent_ms: When the edge sent the last byte, by the edge's clock; None if no client received the whole answer.

        Returns:
            The parts, and the milliseconds to add to a time by the edge's clock to get the time by the broker's clock.
        """
        ends = [end for end in self._ends() if end[1] is not None]
        first = ends[0][1] or received_ms
        last = max(end or 0.0 for _, end in ends)
        skew_ms = min(0.0, first - received_ms)  # a receipt after the append: the edge's clock is ahead
        if sent_ms is not None and not skew_ms:
            skew_ms = max(0.0, min(last - sent_ms, first - received_ms))
        begin = received_ms + skew_ms
        over = None if sent_ms is None else max(begin, sent_ms + skew_ms)  # a client may have it all before ``Closed``
        found: list[Stretch] = []
        for name, at_ms in ends:
            end = max(begin, at_ms or begin)
            end = end if over is None else min(end, over)
            found.append((name, begin, end))
            begin = end
        if over is not None:
            found.append(("delivery", begin, over))
        return found, skew_ms

    def _ends(self) -> list[tuple[Part, float | None]]:
        voice = self.screen.voice  # if an earlier attempt has won a race, the newest one does not count
        opened_ms = self._opened_ms.get(self.screen.attempts if voice is None else voice.attempt)
        opened: list[tuple[Part, float | None]] = [("post", self.posted_ms), ("lost attempts", opened_ms)]
        close: tuple[Part, float | None] = ("close", self.closed_ms)
        run = self.voice_run
        if run is None or run.first_ms is None:  # no model text: a refusal, or a failure
            return [*opened, ("rails", self.verdict_ms), close]
        first = run.first_ms
        to_first: list[tuple[Part, float | None]] = [
            ("worker", run.started_ms),
            ("engine queue", None if run.started_ms is None else min(first, run.started_ms + run.queue_ms)),
            ("prefill", first),
            ("rails", self._rails_end(first)),
            ("hold-back", self.first_shown_ms),
        ]
        return [*opened, *to_first, ("decode", run.last_ms), ("final hold-back", self.last_shown_ms), close]

    def _rails_end(self, first_ms: float) -> float | None:
        # Without a gate, the first text may be shown before the verdict.
        if self.verdict_ms is None or self.first_shown_ms is None:
            return self.verdict_ms
        return min(max(first_ms, self.verdict_ms), self.first_shown_ms)
