"""Build policies and requests for the tests of rails."""

from functools import cache

from schemas.ids import uuid7
from schemas.requests import Message, Request
from services.policy import build
from services.policy.source.files import read_files
from tests.support.policies import ROOT


@cache
def policy(*changes, name="default"):
    """Return a policy of the folder ``policies``, with changes.

    A change is a tuple (path, old, new). It replaces the first ``old`` in the file ``path`` by ``new``.
    """
    files = dict(read_files(ROOT / "policies" / name))
    for path, old, new in changes:
        text = files[path].decode()
        assert old in text
        files[path] = text.replace(old, new, 1).encode()
    return build(files)


def rail_text(name, policy="default"):
    """Return the section of a rail in the ``policy.toml`` of a shipped policy."""
    blocks = (ROOT / "policies" / policy / "policy.toml").read_text().split("\n\n")
    return next(block + "\n" for block in blocks if block.startswith(f'[[rails.rail]]\nname = "{name}"'))


JAILBREAK_RAIL = rail_text("jailbreak")
PII_RAIL = rail_text("pii")

UNHURRIED = (
    ("policy.toml", "deadline_ms = 150", "deadline_ms = 10_000"),
    ("policy.toml", "deadline_ms = 800", "deadline_ms = 10_001"),
    ("policy.toml", "deadline_ms = 800", "deadline_ms = 10_002"),
)
"""Changes to the default policy that give every rail but the jailbreak classifier ten seconds."""

NO_JAILBREAK = (("policy.toml", JAILBREAK_RAIL, ""),)


def request(*contents, tenant="acme", role="user", **how):
    messages = tuple(Message(role=role, content=content) for content in contents or ("What is a log?",))
    return Request(request_id=uuid7(1, 1), tenant=tenant, at=1, source="test", messages=messages, **how)
