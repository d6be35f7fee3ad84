"""The engine's own processes write to this process's stderr; while they start, it is listened to instead of shown."""

import os
import threading
from collections import deque
from types import TracebackType
from typing import Final, Self

REMEMBERED: Final = 400
"""Lines kept for finding out why it did not start; the oldest go first."""

OURS: Final = b" railbus."
"""Stands in every line of our own log: those are shown at once."""


class Hush:
    """Stands in for stderr while something starts that says too much, and shows it from then on.

    A pipe takes stderr's place, so that processes started meanwhile inherit it for their whole life; a thread passes on
    what comes through it. What came through before the end of the block is only remembered, except our own log's lines.

    Args:
        loud: Pass everything on at once.
    """

    def __init__(self, *, loud: bool) -> None:
        self._loud = loud
        self._lines: deque[str] = deque(maxlen=REMEMBERED)
        self._own = -1

    def __enter__(self) -> Self:
        self._own = os.dup(2)
        reading, writing = os.pipe()
        os.dup2(writing, 2)
        os.close(writing)
        threading.Thread(target=self._pass_on, args=(reading,), name="engine-stderr", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.dup2(self._own, 2)  # ours again; the engine's processes keep the pipe
        self._loud = self._loud or kind is None

    @property
    def said(self) -> list[str]:
        """The last lines, oldest first."""
        return list(self._lines)

    def _pass_on(self, reading: int) -> None:
        """Until every process that holds the pipe has ended."""
        with os.fdopen(reading, "rb") as lines:
            for line in lines:
                self._lines.append(line.decode(errors="replace").rstrip("\n"))
                if self._loud or OURS in line:
                    os.write(self._own, line)
