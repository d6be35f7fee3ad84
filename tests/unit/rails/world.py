"""Policies and requests for the tests of rails."""

from functools import cache

from schemas.ids import uuid7
from schemas.requests import Message, Request
from services.policy import build
from services.policy.files import read_files
from tests.unit.policy.folders import ROOT


@cache
def policy(*changes, name="default"):
    """A shipped policy in which texts of files are replaced: (path, old, new)."""
    files = dict(read_files(ROOT / "policies" / name))
    for path, old, new in changes:
        text = files[path].decode()
        assert old in text
        files[path] = text.replace(old, new, 1).encode()
    return build(files)


JAILBREAK = (ROOT / "policies/default/policy.toml").read_text().partition('[[rails.rail]]\nname = "jailbreak"')
JAILBREAK_RAIL = JAILBREAK[1] + JAILBREAK[2].partition("\n\n")[0]

NO_JAILBREAK = (
    ("policy.toml", JAILBREAK_RAIL, ""),
    ("nemo/config.yml", "      - railbus jailbreak\n", ""),
)


def request(*contents, tenant="acme", role="user", **how):
    messages = tuple(Message(role=role, content=content) for content in contents or ("What is a log?",))
    return Request(request_id=uuid7(1, 1), tenant=tenant, at=1, source="test", messages=messages, **how)
