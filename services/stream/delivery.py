"""Decide how much text may be shown: the delivery modes, and the limit on unchecked text."""

from schemas.requests import Delivery
from schemas.stream import OutputCheck
from services.stream.transcript import Transcript


def releasable_chunks(text: Transcript, delivery: Delivery, check: OutputCheck, cleared: int, log_ms: int) -> int:
    """Return how many chunks of an answer may be visible now, counted from its first chunk.

    Args:
        text: The text of the answer so far.
        delivery: The delivery settings of the request.
        check: ``off`` means that no safety service checks the text.
        cleared: ``seq`` of the last chunk that the safety service has checked; -1 if there is none.
        log_ms: The largest broker timestamp of the request's events so far, in milliseconds.
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
    if text.tokens(index + 1, len(text.chunks)) < delivery.hold_tokens:
        return True
    # Only the log's time is used, so that every reader and every replay gets the same result.
    return log_ms - text.known_ms[index] < delivery.hold_ms
