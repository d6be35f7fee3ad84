"""How much text may be shown: the delivery modes and the limit on unchecked text."""

from schemas.requests import Delivery
from schemas.stream import OutputCheck
from services.stream.transcript import Transcript


def releasable_chunks(text: Transcript, delivery: Delivery, check: OutputCheck, cleared: int, log_ms: int) -> int:
    """Return how many of the run's chunks may be shown now, never fewer than are shown already.

    Args:
        text: The run's text so far.
        delivery: The delivery that was requested, as tightened by policy.
        check: ``off`` means that there is no safety service. Then optimistic text is not limited, but in the other
            modes text still waits.
        cleared: ``seq`` of the last chunk that safety cleared; -1 if it cleared none.
        log_ms: Newest timestamp on the log. No other clock is used, so every reader and every replay gets the same
            result.
    """
    known = len(text.chunks)
    if check == "off" and delivery.mode == "optimistic":
        return known
    count = max(text.released, min(cleared + 1, known))
    if delivery.mode == "gated":
        return count
    exposed = text.tokens(cleared + 1, count)
    while count < known:
        chunk = text.chunks[count]
        exposed += chunk.tokens
        if exposed > delivery.max_exposure_tokens:
            break
        if delivery.mode == "windowed" and _held(text, delivery, count, log_ms):
            break
        count += 1
    return count


def _held(text: Transcript, delivery: Delivery, index: int, log_ms: int) -> bool:
    """Return whether ``windowed`` mode holds chunk ``index`` back: too few tokens follow it, or it is too new."""
    if text.tokens(index + 1, len(text.chunks)) < delivery.hold_tokens:
        return True
    return log_ms - text.known_ms[index] < delivery.hold_ms
