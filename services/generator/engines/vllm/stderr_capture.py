"""Capture stderr while the engine starts. vLLM's processes write to the stderr of this process."""

import os
import threading
from collections import deque
from types import TracebackType
from typing import Final, Self

MAX_LINES: Final = 400
"""Number of newest lines that are kept. The reason of a failed start is searched in them."""

OWN_LOG_MARKER: Final = b" railbus."
"""Text that every line of Railbus's own log contains. Such lines are forwarded at once."""


class StderrCapture:
    """A context manager that holds back what is written to stderr in its block.

    In the block, a pipe replaces stderr, and a thread reads the pipe. Processes that are started in the block write to
    the pipe for their whole life. The newest lines are kept (``captured_lines``). Of the lines that are written while
    the block runs, only those of Railbus's own log are forwarded to stderr. If the block raises, this rule also applies
    to later lines. If the block ends without an error, all later lines are forwarded.

    Args:
        verbose: Whether all lines are forwarded at once, also those that are written in the block.
    """

    def __init__(self, *, verbose: bool) -> None:
        self._verbose = verbose
        self._lines: deque[str] = deque(maxlen=MAX_LINES)
        self._stderr = -1

    def __enter__(self) -> Self:
        self._stderr = os.dup(2)
        reading, writing = os.pipe()
        os.dup2(writing, 2)
        os.close(writing)
        threading.Thread(target=self._forward, args=(reading,), name="engine-stderr", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.dup2(self._stderr, 2)  # this process gets its stderr back; the engine's processes keep the pipe
        self._verbose = self._verbose or kind is None

    @property
    def captured_lines(self) -> list[str]:
        """Up to ``MAX_LINES`` newest lines, oldest first."""
        return list(self._lines)

    def _forward(self, reading: int) -> None:
        """Forward lines until every process that can write to the pipe has ended."""
        with os.fdopen(reading, "rb") as lines:
            for line in lines:
                self._lines.append(line.decode(errors="replace").rstrip("\n"))
                if self._verbose or OWN_LOG_MARKER in line:
                    os.write(self._stderr, line)
