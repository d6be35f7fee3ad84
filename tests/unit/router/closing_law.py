"""Check that a ``Closed`` agrees with the events before it."""

from schemas.base import AnyEvent
from schemas.stream import Chunk, Closed, Finished, Recall, Started, Verdict


def check_closed(closed: Closed, before: list[AnyEvent], concluded: str | None) -> None:
    """Check that ``closed`` agrees with the events ``before`` it.

    ``concluded`` says how the answer ended according to the fold of these events; None if it has not ended.
    """
    verdict = next((event for event in before if isinstance(event, Verdict)), None)
    denied = verdict is not None and verdict.decision == "deny"
    assert (closed.outcome == "denied") == denied
    match closed.cause:
        case "answered" | "denied" | "recalled":
            assert concluded == closed.cause
            assert closed.outcome == {"answered": "completed"}.get(closed.cause, closed.cause)
            if closed.cause == "answered":
                assert any(isinstance(event, Finished) for event in before)
            if closed.cause == "recalled":
                assert any(isinstance(event, Recall) and event.action == "stop" for event in before)
        case _:
            assert closed.cause is not None
            assert concluded is None, "the answer had come to its own end"
    if closed.cause == "no_verdict":
        assert verdict is None
    if closed.cause == "cannot_begin":
        assert closed.seen_attempts > 1
    if closed.cause == "no_first_token" and closed.seen_attempts == 1:
        runs = [event.run for event in before if isinstance(event, Started) and event.attempt == 1][:1]
        starts = next((n for n, event in enumerate(before) if isinstance(event, Started) and event.attempt == 1), 0)
        assert not any(isinstance(e, Chunk) and e.attempt == 1 and e.run in runs for e in before[starts:])
