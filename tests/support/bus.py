"""Tests play every role at once, and on copies of topics: what the registry lets each role write, put together."""

import dataclasses
import random

from schemas.base import AnyEvent
from schemas.registry import KINDS, ROLES, ByTopic, writes
from schemas.requests import Request
from schemas.topics import REQUESTS_BATCH, Topic

_WRITES = dict(writes(*ROLES))


def any_role() -> ByTopic:
    """What any role may write, there and on every copy made before or after."""
    return _WRITES


def copy_of(topic: Topic, prefix: str | None = None) -> Topic:
    """A topic of a test's own, on which the same roles may write the same."""
    copied = dataclasses.replace(topic, name=f"{prefix or topic.name}.{random.getrandbits(64):x}")
    _WRITES[copied.name] = _WRITES[topic.name]
    return copied


def topic_of(event: AnyEvent) -> Topic:
    """Return the topic that an event belongs on, the first of several."""
    if isinstance(event, Request) and event.lane == "batch":
        return REQUESTS_BATCH
    return KINDS[type(event).__name__].access[0].topic
