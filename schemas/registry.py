"""The registry: one row per kind of event. What each program writes and reads is derived from it, nowhere listed again.

A new kind is its class, its row here, and a recorded example in ``tests/data``; its handler is its reader's business.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from schemas.base import AnyEvent
from schemas.books import Account, Attached, Cancel, DeadLetter, Detached, Window
from schemas.requests import Request
from schemas.stream import Chunk, Cleared, Closed, Cutover, Failed, Finished, Recall, Started, Verdict
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
    TOPICS,
    Topic,
)

RoleName = Literal["app", "edge", "generator", "vertex", "rails", "safety", "router", "operator"]
"""Every program that writes or reads a topic. ``app`` is any program outside, ``operator`` the ``railbus`` command."""

ROLES: Final[tuple[RoleName, ...]] = get_args(RoleName)

ByTopic = Mapping[str, frozenset[type[AnyEvent]]]
"""Topic name -> the event classes that a role writes, or reads, there."""


@dataclass(frozen=True, slots=True)
class Place:
    """A kind on one topic.

    Attributes:
        topic: Where it stands.
        writers: The only roles that may write it there.
        readers: The roles that act on it there.
    """

    topic: Topic
    writers: frozenset[RoleName]
    readers: frozenset[RoleName]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One row. What the kind is about is said by the docstring of its class.

    Attributes:
        cls: Its class; the class's name is the kind's.
        version: Of the wire format that this code writes; it reads all up to it.
        places: The topics on which it may stand.
        prompts: Fields with what a user typed: tools show them only on request.
    """

    cls: type[AnyEvent]
    version: int = 1
    places: tuple[Place, ...]
    prompts: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What the kind header says."""
        return self.cls.__name__

    @property
    def key(self) -> Literal["request_id", "tenant", "none"]:
        """The field that keys its records."""
        return self.places[0].topic.key


def _on(topic: Topic, *, by: tuple[RoleName, ...], to: tuple[RoleName, ...]) -> Place:
    """A place. The router reads every record too, to find those that nobody can; ``railbus tail`` shows them all."""
    return Place(topic, frozenset(by), frozenset((*to, "router", "operator")))


def _stream(*by: RoleName, safety: bool = True) -> tuple[Place]:
    return (_on(STREAMS, by=by, to=("app", "edge", "safety") if safety else ("app", "edge")),)


KINDS: Final[Mapping[str, Kind]] = {
    kind.name: kind
    for kind in (
        Kind(
            cls=Request,
            places=(
                _on(REQUESTS, by=("app", "edge", "router", "operator"), to=("generator", "rails", "edge")),
                _on(REQUESTS_BATCH, by=("app", "edge"), to=("generator", "rails", "edge")),
                _on(REQUESTS_VERTEX, by=("router",), to=("vertex",)),
            ),
            prompts=("messages",),
        ),
        Kind(cls=Verdict, places=_stream("rails"), prompts=("masked",)),
        Kind(cls=Started, places=_stream("generator", "vertex")),
        Kind(cls=Chunk, places=_stream("generator", "vertex")),
        Kind(cls=Finished, places=_stream("generator", "vertex")),
        Kind(cls=Failed, places=_stream("generator", "vertex")),
        Kind(cls=Cutover, places=_stream("router", safety=False)),
        Kind(cls=Cleared, places=_stream("safety")),
        Kind(cls=Recall, places=_stream("safety")),
        Kind(cls=Closed, places=_stream("router")),
        Kind(cls=Cancel, places=(_on(CONTROL, by=("router",), to=("generator", "vertex")),)),
        Kind(cls=Attached, places=(_on(RECEIPTS, by=("edge",), to=()),)),
        Kind(cls=Detached, places=(_on(RECEIPTS, by=("edge",), to=()),)),
        Kind(cls=Account, places=(_on(ACCOUNTS, by=("router",), to=()),)),
        Kind(cls=Window, places=(_on(LEDGER, by=(), to=()),)),  # no program sums up yet
        Kind(cls=DeadLetter, places=(_on(DEAD, by=("router",), to=()),)),
    )
}
"""The rows, by what the kind header says."""


def kinds_on(topic: Topic) -> tuple[Kind, ...]:
    """The kinds that may stand on a topic."""
    return tuple(kind for kind in KINDS.values() if any(place.topic == topic for place in kind.places))


def writes(*roles: RoleName) -> ByTopic:
    """What these roles may write, by topic; a topic on which they write nothing is left out."""
    return _by_topic((kind, place) for kind, place in _places() if place.writers & set(roles))


def reads(*roles: RoleName) -> ByTopic:
    """What these roles act on, by topic; a topic of which they read nothing is left out."""
    return _by_topic((kind, place) for kind, place in _places() if place.readers & set(roles))


def read_kinds(role: RoleName, *topics: Topic) -> frozenset[str]:
    """What the kind header says of the records that a role reads on these topics."""
    by_topic = reads(role)
    return frozenset(cls.__name__ for topic in topics for cls in by_topic.get(topic.name, ()))


def _places() -> Iterator[tuple[Kind, Place]]:
    return ((kind, place) for kind in KINDS.values() for place in kind.places)


def _by_topic(found: Iterator[tuple[Kind, Place]]) -> ByTopic:
    classes: dict[str, set[type[AnyEvent]]] = {}
    for kind, place in found:
        classes.setdefault(place.topic.name, set()).add(kind.cls)
    return {topic.name: frozenset(classes[topic.name]) for topic in TOPICS if topic.name in classes}
