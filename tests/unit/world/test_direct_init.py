"""Objects made with a quicker ``__init__`` are what they were without it."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

PROGRAM = """
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace
from inspect import signature

from schemas.stream import Chunk
from services.simulator import direct_init, world


@dataclass(frozen=True, slots=True)
class Made:
    a: int
    b: int = 2
    c: list[int] = field(default_factory=list)
    d: int = field(default=4, kw_only=True)
    e: int = field(kw_only=True)
    f: int = 0

    def __post_init__(self):
        object.__setattr__(self, "f", self.a + self.e)


def refused(make):
    try:
        make()
    except (FrozenInstanceError, TypeError) as error:
        return str(error)


def of_chunk():
    return Chunk(request_id="r", tenant="t", at=1, source="s", attempt=1, run="x", seq=3, start=4, text="y", tokens=2)


def look():
    made, chunk = Made(1, 3, e=5), of_chunk()
    return (
        made.c is not Made(1, e=5).c, type(made) is Made, repr(made), hash(chunk), repr(chunk), type(chunk) is Chunk,
        chunk == replace(chunk), chunk == replace(chunk, seq=9), made == replace(made, e=6),
        refused(lambda: setattr(chunk, "seq", 4)), refused(lambda: delattr(chunk, "seq")),
        refused(lambda: Made(1)), refused(lambda: Chunk(request_id="r")), refused(lambda: Made(1, e=2, g=3)),
        [(each.name, each.kind) for each in signature(Made).parameters.values()],
        [(each.name, each.kind) for each in signature(Chunk).parameters.values()],
    )


import services

services.made = __import__("types").SimpleNamespace(Made=Made)
import sys

sys.modules["services.made"] = services.made
before, old = look(), of_chunk()
changed = direct_init.store_directly()
assert Made.__init__.__code__.co_filename == Chunk.__init__.__code__.co_filename == "<string>"
assert "twin" in Made.__init__.__globals__, "the class was not changed"
assert "twin" in Chunk.__init__.__globals__, "the class was not changed"
assert look() == before, (look(), before)
assert old == of_chunk()
assert direct_init.store_directly() == changed > 20
"""


def test_objects_are_the_same_and_as_frozen() -> None:
    """In a process of its own: it changes the classes of events."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
