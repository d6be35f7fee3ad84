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


NO_JAILBREAK = (
    ("policy.toml", '[[rails.rail]]\nname = "jailbreak"\nthreshold = 0.8\n', ""),
    ("nemo/config.yml", "      - railbus jailbreak\n", ""),
)


def request(*contents, tenant="acme", role="user", **how):
    messages = tuple(Message(role=role, content=content) for content in contents or ("What is a log?",))
    return Request(request_id=uuid7(1, 1), tenant=tenant, at=1, source="test", messages=messages, **how)
