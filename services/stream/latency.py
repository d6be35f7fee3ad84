"""Divides the time that a client waited for one request into parts, as read from the log. No I/O, no clock.

The parts add up to the client's wait. Times inside the log are the broker's append times, in milliseconds, so the
clocks of two hosts are not compared. Only the first and the last time are by the edge's clock: the time at which it had
received the request, and the time at which it had sent the last byte. If the edge's clock and the broker's differ, the
first part is too long and the last too short by the difference, or the reverse, but the sum of both is right. A
difference that would make one of the two parts negative is detected, removed, and reported as ``clock_skew_ms``.

The parts are consecutive stretches of time. Each is named after what the answer waited for. Work that ran meanwhile and
that the answer did not wait for (rails during prefill, checks during decoding) adds nothing. ``hidden_rails_ms`` says
how much of the rails' time that was.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

from schemas.base import AnyEvent
from schemas.requests import Request
from schemas.side_events import Detached, StageTimes
from schemas.stream import StreamEvent
from services.stream.screen import Screen
from services.stream.stages import Part, StageRecorder

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
"""What the answer waited for in each part of a request's time. The parts are in order of time."""

_GOVERNANCE: Final[frozenset[Part]] = frozenset({"rails", "hold-back"})


class LogEvent(NamedTuple):
    """An event of the request, and when the broker appended it, in milliseconds since the epoch."""

    appended_ms: int
    event: AnyEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """How the time of one request was spent, in milliseconds.

    Attributes:
        parts: Name and duration of each part of this time, in order. The durations add up to ``total_ms``.
        total_ms: From receipt to the last byte sent. If no client took the whole answer, to the end of the last part on
            the log.
        first_text_ms: From receipt to the first visible text; None if no text was shown.
        governance_first_text_ms: How much later the first text was visible because of rails and safety.
        governance_total_ms: How much later the last text was visible because of rails and safety.
        hidden_rails_ms: Time in which the rails ran and the answer did not wait for them.
        plain_decode_ms: Time that the tokens after the voice's first chunk would have taken without speculation; None
            if that is not known.
        decode_ms: Time that the tokens after the voice's first chunk took, that is, the time from this chunk to the
            voice's last chunk.
        tokens: Number of the voice's tokens.
        later_tokens: Number of the voice's tokens after its first chunk.
        clock_skew_ms: The least difference between the clocks of edge and broker that explains the recorded times.
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
    later_tokens: int
    clock_skew_ms: float

    @property
    def earned_ms(self) -> float | None:
        """Return the time that speculation saved; None if the time between two tokens without it is not known."""
        return None if self.plain_decode_ms is None else self.plain_decode_ms - self.decode_ms


def latency(request_id: str, events: Iterable[LogEvent], *, plain_token_ms: float | None = None) -> Latency | None:
    """Return how a request's time was spent; None if it is not closed yet or its ``Request`` is not on the log.

    Args:
        request_id: Id of the request.
        events: All events of the request. The events of one topic must be in the order of the log.
        plain_token_ms: Time between two tokens without speculation, as `railbus bench engine` measures it.
    """
    recorder = StageRecorder(Screen(request_id))
    received_ms: float | None = None
    sent_ms: float | None = None
    for appended_ms, event in events:
        match event:
            case Request() if event.attempt == 1 and received_ms is None:
                received_ms, recorder.posted_ms = event.at / 1_000, float(appended_ms)
            case Detached() if event.reason == "complete":
                sent_ms = min(sent_ms or event.at / 1_000, event.at / 1_000)  # later connections read the answer again
            case StreamEvent():
                recorder.feed(event, int(appended_ms))  # ``hold_ms`` is measured by the log's time
            case _:
                pass
    if received_ms is None or recorder.closed_ms is None:
        return None
    return measure(recorder, received_ms, sent_ms, plain_token_ms=plain_token_ms)


def measure(
    recorder: StageRecorder, received_ms: float, sent_ms: float | None = None, *, plain_token_ms: float | None = None
) -> Latency:
    """Return how the time of a closed request was spent.

    Args:
        recorder: The recorder to which the request's log was fed.
        received_ms: When the edge received the request, by the edge's clock.
        sent_ms: When the edge had sent the last byte, by the same clock; None if no client took the whole answer.
        plain_token_ms: Time between two tokens without speculation; None if it is not known.
    """
    stretches, clock_skew_ms = recorder.stretches(received_ms, sent_ms)
    parts = tuple((name, end - begin) for name, begin, end in stretches)
    begin = received_ms + clock_skew_ms
    ends = {name: end for name, _, end in stretches}
    by_name = dict(parts)
    rails_ms = by_name.get("rails", 0.0)
    to_first_ms = sum(by_name.get(name, 0.0) for name in _GOVERNANCE)
    first_shown_ms = recorder.first_shown_ms
    shown_ms = None if first_shown_ms is None else max(0.0, first_shown_ms - begin)
    run = recorder.voice_run
    first_ms, last_ms = (None, None) if run is None else (run.first_ms, run.last_ms)
    later_tokens = 0 if run is None else run.answer_tokens - run.first_tokens
    late_ms = _after(ends.get("final hold-back"), last_ms)
    return Latency(
        parts=parts,
        total_ms=stretches[-1][2] - begin,
        first_text_ms=shown_ms,
        governance_first_text_ms=min(to_first_ms, shown_ms or 0.0),
        governance_total_ms=min(late_ms, to_first_ms + by_name.get("final hold-back", 0.0)),
        hidden_rails_ms=max(0.0, recorder.rails_ms - rails_ms),
        plain_decode_ms=None if plain_token_ms is None else plain_token_ms * later_tokens,
        decode_ms=_after(last_ms, first_ms),
        tokens=0 if run is None else run.answer_tokens,
        later_tokens=later_tokens,
        clock_skew_ms=clock_skew_ms,
    )


def stage_times(found: Latency) -> StageTimes:
    """Return the parts of a request's time, apart from ``delivery``, as the ``StageTimes`` of an ``Account``."""
    return StageTimes(**{_field(name): ms for name, ms in found.parts if name != "delivery"})


@cache
def _field(part: Part) -> str:
    return part.replace(" ", "_").replace("-", "_") + "_ms"


def settle(parts: Sequence[int], waited: int) -> list[int]:
    """Divide a client's waiting time into the parts that an account has and the delivery. Return their durations.

    The difference between the clocks is corrected as in ``measure`` with ``sent_ms``, but only the ``Account`` and the
    ``Detached`` are needed.

    Args:
        parts: Durations of the parts, in the order of ``StageTimes``.
        waited: Time from the arrival of the request to the last byte sent, in the unit of ``parts``. The returned
            durations add up to it.
    """
    excess = max(0, min(sum(parts) - waited, parts[0]))  # the edge's clock is behind the broker's
    left, settled = waited, []
    for index, part in enumerate(parts):
        took = min(part if index else part - excess, left)
        settled.append(took)
        left -= took
    return [*settled, left]


def _after(later_ms: float | None, earlier_ms: float | None) -> float:
    return 0.0 if later_ms is None or earlier_ms is None else max(0.0, later_ms - earlier_ms)
