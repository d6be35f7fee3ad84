"""Make requests and tickets for tests of the worker."""

from schemas.requests import Deadlines, Delivery, Message, Request
from services.worker.scheduler import Ticket

T0_US = 1_800_000_000_000_000


def request_id(number=0):
    return f"01890000-0000-7000-8000-{number:012x}"


def request(number=0, *, text="Tell me about rivers.", at_us=T0_US, total_ms=60_000, mode="optimistic", **changes):
    return Request(
        request_id=request_id(number),
        tenant="acme",
        at=at_us,
        source="test",
        messages=(Message(role="user", content=text),),
        delivery=Delivery(mode=mode),
        deadlines=Deadlines(total_ms=total_ms),
        **changes,
    )


def ticket(number=0, *, run=None, batch=False, now_us=T0_US, at_us=T0_US, **changes):
    """Return the ticket of a request that was received at ``at_us`` and accepted at ``now_us``.

    ``changes`` are passed to ``request``.
    """
    asked = request(number, at_us=at_us, **changes)
    return Ticket(asked, run or f"run-{number}", None, batch, now_us, at_us)
