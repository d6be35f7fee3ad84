"""Who writes and who reads each topic. The outside world is ``app``: any program with a Kafka client."""

from dataclasses import dataclass
from typing import Final, Literal

from schemas.topics import (
    ACCOUNTS,
    CONTROL,
    DEAD,
    LEDGER,
    RECEIPTS,
    REQUESTS,
    REQUESTS_BATCH,
    REQUESTS_VERTEX,
    STREAMS,
    Topic,
)


@dataclass(frozen=True, slots=True)
class Role:
    """What one program does with one topic.

    Attributes:
        who: The service, or ``app`` for programs outside.
        does: ``send`` or ``receive``.
        topic: On which topic.
        kinds: Which of the topic's events.
    """

    who: str
    does: Literal["send", "receive"]
    topic: Topic
    kinds: tuple[str, ...]


def _sends(who: str, topic: Topic, *kinds: str) -> Role:
    return Role(who, "send", topic, kinds or topic.kinds)


def _receives(who: str, *topics: Topic) -> tuple[Role, ...]:
    return tuple(Role(who, "receive", topic, topic.kinds) for topic in topics)


_WORKER: Final = ("Started", "Chunk", "Finished", "Failed")

ROLES: Final = (
    _sends("app", REQUESTS),
    *_receives("app", STREAMS),
    _sends("edge", REQUESTS),
    _sends("edge", RECEIPTS),
    *_receives("edge", STREAMS),
    _sends("rails", STREAMS, "Verdict"),
    *_receives("rails", REQUESTS, REQUESTS_BATCH),
    _sends("generator", STREAMS, *_WORKER),
    *_receives("generator", REQUESTS, REQUESTS_BATCH, CONTROL),
    _sends("vertex", STREAMS, *_WORKER),
    *_receives("vertex", REQUESTS_VERTEX, CONTROL),
    _sends("safety", STREAMS, "Cleared", "Recall"),
    *_receives("safety", STREAMS),
    _sends("router", STREAMS, "Cutover", "Closed"),
    _sends("router", REQUESTS_VERTEX),
    _sends("router", CONTROL),
    _sends("router", ACCOUNTS),
    _sends("router", DEAD),
    *_receives("router", REQUESTS, STREAMS, RECEIPTS),
    _sends("batch", REQUESTS_BATCH),
    _sends("ledger", LEDGER),
    *_receives("ledger", ACCOUNTS, RECEIPTS),
    *_receives("audit", REQUESTS, REQUESTS_BATCH, REQUESTS_VERTEX, STREAMS, CONTROL, RECEIPTS, ACCOUNTS, LEDGER, DEAD),
)
