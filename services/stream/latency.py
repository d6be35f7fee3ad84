"""Divide the latency of a request, from its receipt to the last byte sent, into consecutive parts.

The edge is the service that clients connect to. Its clock gives the time of the receipt and of the last byte. The
broker's clock gives all other times.
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
    appended_ms: int
    event: AnyEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """How the time of one request was spent, in milliseconds.

    Attributes:
        parts: Name and duration of each part of the time, in the order in which the parts happened.
        total_ms: Time from the receipt of the request to the last byte sent. If no client received the whole answer,
            the time from the receipt to ``Closed``.
        first_text_ms: Time from the receipt to the first visible text; None if no text was shown.
        governance_first_text_ms: Delay of the first visible text, caused by the rails (the checks of the prompt) and
            the safety service.
        governance_total_ms: Delay of the last visible text, caused by the rails and the safety service.
        hidden_rails_ms: Time for which the rails ran without delaying the answer.
        decode_ms: Time from the first chunk of the answer to the last chunk.
        plain_decode_ms: Estimate of what ``decode_ms`` would be without speculative decoding; None if unknown.
        tokens: Number of tokens of the answer.
        later_tokens: Number of tokens of the answer without its first chunk.
        clock_skew_ms: Estimate of how far the broker's clock is ahead of the edge's clock, in milliseconds. It is
            negative if the broker's clock is behind.
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
        """Estimate of the time that speculative decoding saved; None if unknown."""
        return None if self.plain_decode_ms is None else self.plain_decode_ms - self.decode_ms


def latency(request_id: str, events: Iterable[LogEvent], *, plain_token_ms: float | None = None) -> Latency | None:
    """Compute how a request's time was spent. Return None if the request is not closed or its ``Request`` is missing.

    Args:
        request_id: Id of the request.
        events: All events of the request. The events of one topic must be in the order of the log.
        plain_token_ms: Milliseconds that a token would take without speculative decoding; None if unknown.
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
    """Compute how the time of a closed request was spent.

    Args:
        recorder: The recorder to which all events of the request were fed.
        received_ms: When the edge received the request, by the edge's clock.
        sent_ms: When the edge sent the last byte, by the edge's clock; None if no client received the whole answer.
        plain_token_ms: Milliseconds that a token would take without speculative decoding; None if unknown.
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
    return StageTimes(**{_field(name): ms for name, ms in found.parts if name != "delivery"})


@cache
def _field(part: Part) -> str:
    return part.replace(" ", "_").replace("-", "_") + "_ms"


def settle(parts: Sequence[int], waited: int) -> list[int]:
    """Split ``waited`` into the durations of a request's parts and the delivery time.

    Args:
        parts: Durations of the parts from the request's arrival to ``Closed``, in order.
        waited: Time from the request's arrival to the last byte sent, in the same unit.

    Returns:
        The durations of the parts, and then the delivery time. They add up to ``waited``. For example,
        ``settle([5, 10], 20)`` is ``[5, 10, 5]``. If the sum of the parts is more than ``waited``, the first part is
        shortened. If that is not enough, the other parts are shortened, the last one first. For example,
        ``settle([5, 10], 12)`` is ``[2, 10, 0]``.
    """
    # The difference between the clocks is corrected as in ``measure``.
    excess = max(0, min(sum(parts) - waited, parts[0]))  # the edge's clock is behind the broker's
    left, settled = waited, []
    for index, part in enumerate(parts):
        took = min(part if index else part - excess, left)
        settled.append(took)
        left -= took
    return [*settled, left]


def _after(later_ms: float | None, earlier_ms: float | None) -> float:
    return 0.0 if later_ms is None or earlier_ms is None else max(0.0, later_ms - earlier_ms)
