"""One child process: started so that it cannot outlive its parent, listened to, and ended within a bound."""

import asyncio
import ctypes
import os
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Final

from services.cli.fleet import Launch
from services.runtime.errors import UserError

MAX_LINE: Final = 16_384
"""Bytes of a line that are kept; a child that writes no line breaks must not fill the parent's memory."""

LAST_LINES: Final = 5
"""Lines kept to say what a child said before it ended."""

DRAIN_S: Final = 1.0
"""Longest wait for what an ended child wrote; something else may hold its pipes open."""

_PR_SET_PDEATHSIG: Final = 1

Say = Callable[[str], None]


class Child:
    """A running process.

    Attributes:
        launch: How it was started.
        ready: Set when it said that it serves.
        last: The last lines it wrote, on either stream.
    """

    def __init__(self, launch: Launch, process: asyncio.subprocess.Process, say: Say) -> None:
        self.launch = launch
        self.ready = asyncio.Event()
        self.last: deque[str] = deque(maxlen=LAST_LINES)
        self._process = process
        self._say = say
        self._pumps = asyncio.gather(self._pump_stdout(), self._pump_stderr(), return_exceptions=True)

    @classmethod
    async def start(cls, launch: Launch, env: dict[str, str], say: Say) -> "Child":
        """Starts the process in a group of its own: a Ctrl-C at the terminal reaches the supervisor alone.

        Not in a session of its own: Linux schedules each session as one, and ``nice`` counts only within it.

        Raises:
            UserError: The program cannot be run.
        """
        try:
            process = await asyncio.create_subprocess_exec(
                *launch.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**env, **launch.env, "PYTHONUNBUFFERED": "1"},
                preexec_fn=_settle(os.getpid(), launch.nice),
            )
        except OSError as error:
            raise UserError(f"{launch.name} cannot be started: {launch.command[0]}: {error.strerror}") from None
        return cls(launch, process, say)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    async def ended(self) -> int:
        """Waits for its end and for all it wrote; the exit status, negative for a signal."""
        code = await self._process.wait()
        done, _ = await asyncio.wait({self._pumps}, timeout=DRAIN_S)
        for error in self._pumps.result() if done else ():
            if error is not None:
                self._say(f"{self.launch.name}: what it wrote last is lost: {error!r}")
        return code

    async def stop(self, within_s: float) -> None:
        """SIGTERM, and SIGKILL when it is still there after ``within_s``."""
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(within_s):
                    await self._process.wait()
            except TimeoutError:
                self._say(f"{self.launch.name} did not stop within {within_s:.0f} s: killed")
                self._process.kill()
        await self.ended()

    async def _pump_stdout(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - asked for in start
        async for line in _lines(self._process.stdout):
            self.last.append(line)
            if self.launch.ready in line:
                self.ready.set()

    async def _pump_stderr(self) -> None:
        assert self._process.stderr is not None  # noqa: S101 - asked for in start
        async for line in _lines(self._process.stderr):
            self.last.append(line)
            self._say(f"{self.launch.name} | {line}")


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    rest = b""
    while piece := await stream.read(65_536):
        *whole, rest = (rest + piece).split(b"\n")
        rest = rest[:MAX_LINE]
        for line in whole:
            yield line[:MAX_LINE].decode(errors="replace").rstrip()
    if rest:
        yield rest.decode(errors="replace").rstrip()


def _settle(parent: int, nice: int) -> Callable[[], None]:
    """Runs in the child before its program.

    It forms a group of its own, steps back as far as it should, and dies when the supervisor is gone.
    """
    # Looked up here: nothing may be loaded between fork and exec.
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None

    def before_exec() -> None:
        os.setpgid(0, 0)
        os.nice(nice)
        if prctl is None:
            return
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return before_exec
