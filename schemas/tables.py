"""The README's tables of topics and events, between marker comments."""

from collections.abc import Iterable, Sequence
from typing import Final

from schemas.json_schemas import summary
from schemas.registry import KINDS, ROLES, kinds_on
from schemas.topics import DAY_MS, DEFAULT_PARTITIONS, TOPICS, Topic

_KEYS: Final = {"request_id": "request id", "tenant": "tenant", "none": "none"}


def with_tables(text: str) -> str:
    """The text with each table as it is now.

    Raises:
        ValueError: A table's markers are not there.
    """
    for name, table in (("topics", _topics()), ("events", _events())):
        begin, end = f"<!-- begin {name} (make schemas) -->\n", f"<!-- end {name} -->\n"
        before, found, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        if not found or not closed:
            msg = f"the README lacks {begin.strip()} or, after it, {end.strip()}"
            raise ValueError(msg)
        text = before + begin + table + end + after
    return text


def _topics() -> str:
    head = ("topic", "key", "holds", "written by", "read by", "partitions", "kept")
    return _table(head, (_topic(topic) for topic in TOPICS))


def _topic(topic: Topic) -> Sequence[str]:
    kinds = kinds_on(topic)
    places = [place for kind in kinds for place in kind.places if place.topic == topic]
    return (
        f"`{topic.name}`",
        _KEYS[topic.key],
        f"{', '.join(f'`{kind.name}`' for kind in kinds)}: {topic.about}",
        _roles(role for place in places for role in place.writers),
        _roles(role for place in places for role in place.readers),
        f"{DEFAULT_PARTITIONS}, or as set" if topic.spread == "requests" else "1",
        f"{topic.retention_ms // DAY_MS} d",
    )


def _events() -> str:
    rows = (
        (
            f"`{kind.name}` {kind.version}",
            f"`{place.topic.name}`",
            _roles(place.writers),
            _roles(place.readers),
            summary(kind.cls),
        )
        for kind in KINDS.values()
        for place in kind.places
    )
    return _table(("event, version", "on", "written by", "read by", "says"), rows)


def _roles(found: Iterable[str]) -> str:
    """Each once, in the registry's order."""
    names = set(found)
    return ", ".join(role for role in ROLES if role in names) or "nobody yet"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = (head, ("---",) * len(head), *rows)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
