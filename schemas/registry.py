"""The registry: one row for each kind of event, with the programs that write and read it.

A new kind needs a class, a row here, and a recorded example in ``tests/data``.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from schemas.base import AnyEvent
from schemas.batches import BatchControl, BatchCreated, BatchFinished, BatchProgress
from schemas.requests import Request
from schemas.side_events import Account, Attached, Cancel, DeadLetter, Detached, Window
from schemas.stream import Chunk, Cleared, Closed, Cutover, Failed, Finished, Recall, Started, Verdict
from schemas.topics import (
    ACCOUNTS,
    BATCHES,
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

RoleName = Literal[
    "app", "edge", "generator", "vertex", "rails", "safety", "router", "batch", "ledger", "audit", "tracer", "operator"
]  # fmt: skip
"""The programs that write or read topics. ``app`` is any program outside of Railbus, ``operator`` is the ``railbus``
command, ``audit`` is the archiver."""

ROLES: Final[tuple[RoleName, ...]] = get_args(RoleName)

GROUPS: Final[Mapping[RoleName, tuple[str, ...]]] = {
    "app": (),
    "edge": ("edge-homes",),
    "generator": ("generator", "generator-batch"),
    "vertex": ("vertex",),
    "rails": ("rails", "rails-batch"),
    "safety": ("safety",),
    "router": ("router",),
    "batch": ("batch",),
    "ledger": ("ledger",),
    "audit": ("audit",),
    "tracer": ("tracer",),
    "operator": (),
}
"""The consumer groups that each role joins. An app that joins another group also needs a grant to read that group."""

OWN_TOPICS: Final[Mapping[RoleName, tuple[str, ...]]] = {"ledger": ("ledger-entries-changelog",)}
"""Topics that a role creates for itself and that hold no events. They are the changelogs of Faust's tables."""

ByTopic = Mapping[str, frozenset[type[AnyEvent]]]
"""The event classes that a role writes, or those that it reads, by topic name."""


@dataclass(frozen=True, slots=True)
class TopicAccess:
    topic: Topic
    writers: frozenset[RoleName]
    readers: frozenset[RoleName]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of event.

    Attributes:
        cls: The event's class. The class name is also the name of the kind.
        version: The version of the wire format that is written. Earlier versions can be read, too.
        access: The topics that may hold the kind, with the writers and readers of each.
        prompts: Names of the fields with text from users. Tools hide these fields unless an option asks for them.
    """

    cls: type[AnyEvent]
    version: int = 1
    access: tuple[TopicAccess, ...]
    prompts: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.cls.__name__

    @property
    def key(self) -> Literal["request_id", "tenant", "batch_id", "none"]:
        """Name of the field that is the record's key; ``none`` if records have no key."""
        return self.access[0].topic.key


def _access_on(topic: Topic, *, by: tuple[RoleName, ...], to: tuple[RoleName, ...]) -> TopicAccess:
    # The router, the archiver and the operator read every topic.
    return TopicAccess(topic, frozenset(by), frozenset((*to, "router", "audit", "operator")))


def _stream(*by: RoleName, safety: bool = True) -> tuple[TopicAccess]:
    to: tuple[RoleName, ...] = ("app", "edge", "batch", "safety") if safety else ("app", "edge", "batch")
    return (_access_on(STREAMS, by=by, to=to),)


KINDS: Final[Mapping[str, Kind]] = {
    kind.name: kind
    for kind in (
        Kind(
            cls=Request,
            access=(
                _access_on(REQUESTS, by=("app", "edge", "router", "operator"), to=("generator", "rails", "edge")),
                _access_on(
                    REQUESTS_BATCH,
                    by=("app", "edge", "router", "batch"),
                    to=("generator", "rails", "edge", "batch"),
                ),
                _access_on(REQUESTS_VERTEX, by=("router",), to=("vertex",)),
            ),
            prompts=("messages",),
        ),
        Kind(cls=Verdict, access=_stream("rails"), prompts=("masked",)),
        Kind(cls=Started, access=_stream("generator", "vertex")),
        Kind(cls=Chunk, access=_stream("generator", "vertex")),
        Kind(cls=Finished, access=_stream("generator", "vertex")),
        Kind(cls=Failed, access=_stream("generator", "vertex")),
        Kind(cls=Cutover, access=_stream("router", safety=False)),
        Kind(cls=Cleared, access=_stream("safety")),
        Kind(cls=Recall, access=_stream("safety")),
        Kind(cls=Closed, access=_stream("router")),
        Kind(cls=Cancel, access=(_access_on(CONTROL, by=("router", "batch"), to=("generator", "vertex")),)),
        Kind(cls=Attached, access=(_access_on(RECEIPTS, by=("edge",), to=("ledger",)),)),
        Kind(cls=Detached, access=(_access_on(RECEIPTS, by=("edge",), to=("ledger", "tracer")),)),
        Kind(cls=Account, access=(_access_on(ACCOUNTS, by=("router",), to=("ledger", "safety", "tracer", "edge")),)),
        Kind(cls=Window, access=(_access_on(LEDGER, by=("ledger",), to=("edge",)),)),
        Kind(cls=BatchCreated, access=(_access_on(BATCHES, by=("edge", "operator"), to=("batch", "edge")),)),
        Kind(cls=BatchControl, access=(_access_on(BATCHES, by=("edge", "operator"), to=("batch", "edge")),)),
        Kind(cls=BatchProgress, access=(_access_on(BATCHES, by=("batch",), to=("batch", "edge")),)),
        Kind(cls=BatchFinished, access=(_access_on(BATCHES, by=("batch",), to=("batch", "edge")),)),
        Kind(cls=DeadLetter, access=(_access_on(DEAD, by=("router",), to=()),), prompts=("value_b64",)),
    )
}
"""The rows, by the value of the kind header."""


def kinds_on(topic: Topic) -> tuple[Kind, ...]:
    return tuple(kind for kind in KINDS.values() if any(access.topic == topic for access in kind.access))


def writes(*roles: RoleName) -> ByTopic:
    """Return the event classes that at least one of these roles may write, by topic."""
    return _by_topic((kind, access) for kind, access in _rows() if access.writers & set(roles))


def reads(*roles: RoleName) -> ByTopic:
    """Return the event classes that at least one of these roles reads, by topic."""
    return _by_topic((kind, access) for kind, access in _rows() if access.readers & set(roles))


def read_kinds(role: RoleName, *topics: Topic) -> frozenset[str]:
    """Return the names of the event classes that services of this role read from these topics."""
    by_topic = reads(role)
    return frozenset(cls.__name__ for topic in topics for cls in by_topic.get(topic.name, ()))


def _rows() -> Iterator[tuple[Kind, TopicAccess]]:
    return ((kind, access) for kind in KINDS.values() for access in kind.access)


def _by_topic(found: Iterator[tuple[Kind, TopicAccess]]) -> ByTopic:
    classes: dict[str, set[type[AnyEvent]]] = {}
    for kind, access in found:
        classes.setdefault(access.topic.name, set()).add(kind.cls)
    return {topic.name: frozenset(classes[topic.name]) for topic in TOPICS if topic.name in classes}
