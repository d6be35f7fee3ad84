"""The tasks and texts with which the quality of answers is measured."""

import re
from functools import cache
from importlib.resources import files
from typing import Final, Literal

import msgspec

MAX_TOKENS: Final = 16
"""Maximum number of tokens of an answer to a task."""

_PUNCTUATION: Final = re.compile(r"[^\w\s]")


class Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kind: Literal["arithmetic", "copying", "extraction", "completion"]
    question: str
    answer: str


class TaskSet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tasks: tuple[Task, ...]
    texts: tuple[str, ...]


@cache
def task_set() -> TaskSet:
    return msgspec.json.decode(files(__package__).joinpath("tasks.json").read_bytes(), type=TaskSet)


def is_solved(text: str | None, answer: str) -> bool:
    """Return whether the first line of ``text`` contains ``answer``. Case and punctuation are ignored."""
    line = (text or "").strip().partition("\n")[0]
    return f" {_words(answer)} " in f" {_words(line)} "


def _words(text: str) -> str:
    return " ".join(_PUNCTUATION.sub(" ", text).lower().split())
