"""Give tests the write permissions of all roles, and define a topic for a single test."""

import dataclasses
import random

from schemas.base import AnyEvent
from schemas.registry import KINDS, ROLES, ByTopic, writes
from schemas.requests import Request
from schemas.topics import REQUESTS_BATCH, Topic

_WRITES = dict(writes(*ROLES))


def any_role() -> ByTopic:
    """Return the write permissions of all roles together: for each topic name, the permitted event classes.

    The function ``copy_of`` adds its new topics to this mapping.
    """
    return _WRITES


def copy_of(topic: Topic, prefix: str | None = None) -> Topic:
    """Return the definition of a topic like ``topic``, but with a random name, for one test.

    A producer with the role ``any_role()`` may write the same events to the new topic as to ``topic``. The new name
    begins with ``prefix``, or else with the old name.
    """
    copied = dataclasses.replace(topic, name=f"{prefix or topic.name}.{random.getrandbits(64):x}")
    _WRITES[copied.name] = _WRITES[topic.name]
    return copied


def topic_of(event: AnyEvent) -> Topic:
    """Return the topic to which an event is written. If an event may be written to several topics, return the first."""
    if isinstance(event, Request) and event.lane == "batch":
        return REQUESTS_BATCH
    return KINDS[type(event).__name__].access[0].topic
