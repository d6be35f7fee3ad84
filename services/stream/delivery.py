"""How much of the text may be on a screen: the delivery modes and the bound on unchecked text."""

from schemas.requests import Delivery
from schemas.stream import Check
from services.stream.transcript import Transcript


def releasable(text: Transcript, delivery: Delivery, check: Check, cleared: int, log_time_us: int) -> int:
    """How many of the run's chunks may be shown now (never fewer than are).

    Args:
        text: The run's text so far.
        delivery: What was asked for, within policy.
        check: ``off``: there is no safety service; optimistic text is then not bounded, other modes still wait.
        cleared: Last chunk that safety cleared; -1 for none.
        log_time_us: Newest event time on the log, microseconds: the only clock a replay has.
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
        if delivery.mode == "windowed" and _held(text, delivery, count, log_time_us):
            break
        count += 1
    return count


def _held(text: Transcript, delivery: Delivery, index: int, log_time_us: int) -> bool:
    """Whether the window still holds chunk ``index`` back: among the newest tokens, or too young."""
    if text.tokens(index + 1, len(text.chunks)) < delivery.hold_tokens:
        return True
    return log_time_us - text.chunks[index].at < delivery.hold_ms * 1_000
