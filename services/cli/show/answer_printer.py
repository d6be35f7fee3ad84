import shutil
import sys
import time
from collections.abc import Awaitable
from typing import Self

import msgspec
import orjson

from services.cli.client.answer_ops import AnswerError, AnswerOp
from services.cli.client.answer_summary import EXIT_FAILED, EXIT_USAGE, AnswerSummary
from services.cli.show.terminal import Terminal


class AnswerPrinter:
    """Prints the ops of one answer.

    Args:
        terminal: Renders the ops as text. With None, each op is printed as one line of JSON.

    Attributes:
        result: Outcome, times and tokens of the answer so far.
    """

    def __init__(self, terminal: Terminal | None) -> None:
        self._terminal = terminal
        self._mid_line = False
        self.result = AnswerSummary(asked_at=time.monotonic())

    @classmethod
    def for_stdout(cls) -> Self:
        """Create a printer for standard output. Withdrawn text is erased only if standard output is a terminal."""
        if not sys.stdout.isatty():
            return cls(Terminal())
        size = shutil.get_terminal_size()
        return cls(Terminal(size.columns, size.lines))

    def take(self, answered: AnswerOp) -> None:
        self.result.request_id = answered.request_id
        self.result.take(answered.op, time.monotonic())
        if self._terminal is None:
            head = {"request_id": answered.request_id, "id": answered.op_id}
            text = orjson.dumps(head | msgspec.to_builtins(answered.op)).decode() + "\n"
        else:
            text = self._terminal.render(answered.op)
        if text:
            sys.stdout.write(text)
            sys.stdout.flush()
            self._mid_line = not text.endswith("\n")

    def end(self) -> None:
        if self._mid_line:
            sys.stdout.write("\n")
            sys.stdout.flush()


async def print_answer(answer: Awaitable[None], printer: AnswerPrinter) -> int:
    """Await ``answer``, then print a closing line or an error. Return the exit code.

    ``answer`` must call ``printer.take`` with each op.
    """
    try:
        await answer
    except AnswerError as error:
        printer.end()
        sys.stderr.write(f"railbus ask: {error}\n")
        return EXIT_USAGE if error.usage else EXIT_FAILED
    printer.end()
    sys.stderr.write(f"{printer.result.closing_line()}\n")
    return printer.result.exit_code
