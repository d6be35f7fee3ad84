"""Generate the reference page of access control lists."""

from infra.docs.tables import code, codes, table
from schemas.acls import grants
from schemas.registry import GROUPS, ROLES, RoleName, reads, writes
from schemas.topics import TOPICS


def body() -> str:
    return table(("role", "reads", "writes", "consumer groups"), (_row(role) for role in ROLES))


def lists() -> str:
    rows = (
        (
            code(role),
            codes(grant.operations),
            grant.resource,
            f"all that begin with {code(grant.names[0])}" if grant.prefixed else codes(sorted(grant.names)),
        )
        for role in ROLES
        for grant in grants(role)
    )
    return table(("role", "operations", "on", "names"), rows)


def _row(role: RoleName) -> tuple[str, str, str, str]:
    groups = codes(GROUPS[role]) if GROUPS[role] else "none"
    return code(role), _topics(set(reads(role))), _topics(set(writes(role))) or "nothing", groups


def _topics(names: set[str]) -> str:
    return "all topics" if names == {topic.name for topic in TOPICS} else codes(sorted(names))
