"""Writes an answer to standard output as it comes, and keeps its result."""

import shutil
import sys
import time
from typing import Self

import orjson

from services.cli.answers import Answered
from services.cli.result import Result
from services.cli.terminal import Terminal


class Screening:
    """Takes the ops of one answer.

    Args:
        terminal: How they look; None writes each op as a JSON line.

    Attributes:
        result: What became of the question.
    """

    def __init__(self, terminal: Terminal | None) -> None:
        self._terminal = terminal
        self._mid_line = False
        self.result = Result(asked_at=time.monotonic())

    @classmethod
    def on_stdout(cls) -> Self:
        """Erases what is taken back where standard output is a terminal, and says so where it is not."""
        if not sys.stdout.isatty():
            return cls(Terminal())
        size = shutil.get_terminal_size()
        return cls(Terminal(size.columns, size.lines))

    def take(self, answered: Answered) -> None:
        """Writes one op and counts it."""
        self.result.request_id = answered.request_id
        self.result.take(answered.op, time.monotonic())
        if self._terminal is None:
            head = {"request_id": answered.request_id, "id": answered.op_id}
            text = orjson.dumps(head | orjson.loads(orjson.dumps(answered.op))).decode() + "\n"
        else:
            text = self._terminal.render(answered.op)
        if text:
            sys.stdout.write(text)
            sys.stdout.flush()
            self._mid_line = not text.endswith("\n")

    def end(self) -> None:
        """Leaves the cursor at the start of a line."""
        if self._mid_line:
            sys.stdout.write("\n")
            sys.stdout.flush()
