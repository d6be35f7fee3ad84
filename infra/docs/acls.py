"""What each service reads and writes on Kafka, as a table for access control lists."""

from infra.docs.tables import code, codes, table
from schemas.registry import ROLES, RoleName, reads, writes
from schemas.topics import TOPICS


def body() -> str:
    """Return one row for each role."""
    return table(("role", "reads", "writes"), (_row(role) for role in ROLES))


def _row(role: RoleName) -> tuple[str, str, str]:
    return code(role), _topics(set(reads(role))), _topics(set(writes(role))) or "nothing"


def _topics(names: set[str]) -> str:
    return "all topics" if names == {topic.name for topic in TOPICS} else codes(sorted(names))
