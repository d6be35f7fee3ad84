"""Capture stderr while the engine starts. vLLM's processes share it with this process."""

import os
import threading
from collections import deque
from types import TracebackType
from typing import Final, Self

MAX_LINES: Final = 400
"""Number of newest lines that are kept, so that the cause of a failed start can be found in them."""

OWN_LOG_MARKER: Final = b" railbus."
"""Text that every line of our own log contains. Such lines are shown at once."""


class StderrCapture:
    """A context that keeps the lines written to stderr in the block, and forwards all later lines.

    A pipe replaces stderr. Processes started in the block inherit the pipe for their whole life, and a thread forwards
    its lines. Lines written in the block are kept and not forwarded, except those of our own log.

    Args:
        verbose: Forward all lines at once.
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
        os.dup2(self._stderr, 2)  # this process writes to stderr again; the engine's processes keep the pipe
        self._verbose = self._verbose or kind is None

    @property
    def captured_lines(self) -> list[str]:
        """The newest lines, oldest first."""
        return list(self._lines)

    def _forward(self, reading: int) -> None:
        """Forward lines until every process that holds the pipe has ended."""
        with os.fdopen(reading, "rb") as lines:
            for line in lines:
                self._lines.append(line.decode(errors="replace").rstrip("\n"))
                if self._verbose or OWN_LOG_MARKER in line:
                    os.write(self._stderr, line)
