"""Capture what vLLM's processes write to stderr while the engine starts."""

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
    """A context manager that captures the stderr of this process and its child processes while an engine starts.

    Args:
        verbose: Whether to write all captured lines to stderr, too. Without it, only the lines of Railbus's own log are
            written while the engine starts. Lines that come after a successful start are always written.
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
        return list(self._lines)

    def _forward(self, reading: int) -> None:
        with os.fdopen(reading, "rb") as lines:
            for line in lines:
                self._lines.append(line.decode(errors="replace").rstrip("\n"))
                if self._verbose or OWN_LOG_MARKER in line:
                    os.write(self._stderr, line)
