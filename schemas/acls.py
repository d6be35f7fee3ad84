"""Access control lists for Kafka, generated from ``schemas.registry``.

They allow each role, such as ``router``, only what it needs. Kafka denies everything else if
``allow.everyone.if.no.acl.found`` is false (the default).
"""

import shlex
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from schemas.registry import GROUPS, OWN_TOPICS, ROLES, RoleName, reads, writes

TOPIC_PREFIX: Final = "railbus."

_SEE: Final = ("Describe", "DescribeConfigs")
_ADMINISTER: Final = ("Create", "Alter", "AlterConfigs")


class Grant(NamedTuple):
    """Permissions of one role.

    Attributes:
        operations: The permitted operations, with Kafka's names.
        resource: ``topic`` or ``group``.
        names: Names of the topics or groups. If ``prefixed``, prefixes of their names.
    """

    role: RoleName
    operations: tuple[str, ...]
    resource: str
    names: tuple[str, ...]
    prefixed: bool = False


def grants(role: RoleName) -> tuple[Grant, ...]:
    """Return the permissions of a role. Every role may describe all topics."""
    operations = (*_SEE, *_ADMINISTER) if role == "operator" else _SEE
    found = [Grant(role, operations, "topic", (TOPIC_PREFIX,), prefixed=True)]
    if read := tuple(reads(role)):
        found.append(Grant(role, ("Read",), "topic", read))
    if written := tuple(writes(role)):
        found.append(Grant(role, ("Write",), "topic", written))
    if own := OWN_TOPICS.get(role):
        found.append(Grant(role, (*_SEE, "Create", "Read", "Write"), "topic", own))
    if groups := GROUPS[role]:
        found.append(Grant(role, ("Read",), "group", groups))
    return tuple(found)


def commands(principal_prefix: str, bootstrap: str, config: str, roles: Iterable[RoleName] = ROLES) -> Iterator[str]:
    """Return one ``kafka-acls.sh`` command for each permission.

    ``config`` is the file with the settings of a Kafka user who may change access control lists.
    """
    for role in roles:
        for grant in grants(role):
            names = (option for name in grant.names for option in (f"--{grant.resource}", name))
            yield shlex.join(
                (
                    "kafka-acls.sh", "--bootstrap-server", bootstrap, "--command-config", config, "--add",
                    "--allow-principal", f"{principal_prefix}{role}",
                    *(option for operation in grant.operations for option in ("--operation", operation)),
                    *names, *(("--resource-pattern-type", "prefixed") if grant.prefixed else ()),
                )
            )  # fmt: skip
