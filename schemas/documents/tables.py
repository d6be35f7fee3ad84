"""Generate the tables of topics and events in ``schemas/README.md``."""

from collections.abc import Iterable, Sequence
from typing import Final

from schemas.documents.json_schemas import summary
from schemas.registry import KINDS, ROLES, kinds_on
from schemas.topics import DAY_MS, DEFAULT_PARTITIONS, TOPICS, Topic

_KEYS: Final = {"request_id": "request id", "tenant": "tenant", "batch_id": "batch id", "none": "none"}


def with_tables(text: str) -> str:
    """Return the README's text with its tables brought up to date."""
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
    accesses = [access for kind in kinds for access in kind.access if access.topic == topic]
    return (
        f"`{topic.name}`",
        _KEYS[topic.key],
        f"{', '.join(f'`{kind.name}`' for kind in kinds)}: {topic.about}",
        _roles(role for access in accesses for role in access.writers),
        _roles(role for access in accesses for role in access.readers),
        f"{DEFAULT_PARTITIONS}, or as set" if topic.spread == "requests" else "1",
        f"{topic.retention_ms // DAY_MS} d",
    )


def _events() -> str:
    rows = (
        (
            f"`{kind.name}` {kind.version}",
            f"`{access.topic.name}`",
            _roles(access.writers),
            _roles(access.readers),
            summary(kind.cls),
        )
        for kind in KINDS.values()
        for access in kind.access
    )
    return _table(("event, version", "on", "written by", "read by", "says"), rows)


def _roles(found: Iterable[str]) -> str:
    names = set(found)
    return ", ".join(role for role in ROLES if role in names) or "none yet"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = (head, ("---",) * len(head), *rows)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
