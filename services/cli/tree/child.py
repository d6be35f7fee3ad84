"""Run a child process that is killed if its parent dies."""

import asyncio
import ctypes
import errno
import os
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Final

from services.cli.tree.process_specs import ProcessSpec
from services.runtime.errors import UnavailableError, UserError

MAX_LINE_BYTES: Final = 16_384
"""Maximum number of bytes kept of one line. A child that writes no line breaks must not fill the parent's memory."""

KEPT_LINES: Final = 5
"""Number of last lines that are kept, to report why a child ended."""

DRAIN_S: Final = 1.0
"""Maximum time to read the last output of an ended child, because another process may keep the pipes open."""

_PR_SET_PDEATHSIG: Final = 1

_PASSING: Final = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})

LineSink = Callable[[str], None]


class Child:
    """A child process.

    Attributes:
        ready: Set when the process has printed a line that contains ``spec.ready``.
    """

    def __init__(self, spec: ProcessSpec, process: asyncio.subprocess.Process, say: LineSink) -> None:
        self.spec = spec
        self.ready = asyncio.Event()
        self.last: deque[str] = deque(maxlen=KEPT_LINES)
        self._process = process
        self._say = say
        self._pumps = asyncio.gather(self._pump_stdout(), self._pump_stderr(), return_exceptions=True)

    @classmethod
    async def start(cls, spec: ProcessSpec, env: dict[str, str], say: LineSink) -> "Child":
        """Start a process in its own process group.

        Raises:
            UserError: The program cannot be run.
        """
        try:
            process = await asyncio.create_subprocess_exec(
                *spec.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**env, **spec.env, "PYTHONUNBUFFERED": "1"},
                # In its own group, the process does not receive a Ctrl-C at the terminal. It stays in the supervisor's
                # session, because nice levels count only among the processes of one session.
                preexec_fn=_before_exec(os.getpid(), spec.nice),
            )
        except OSError as error:
            kind = UnavailableError if error.errno in _PASSING else UserError
            raise kind(f"{spec.name} cannot be started: {spec.command[0]}: {error.strerror}") from None
        return cls(spec, process, say)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait_ended(self) -> int:
        """Wait until the process has ended. Return its exit code, negative for a signal."""
        code = await self._process.wait()
        done, _ = await asyncio.wait({self._pumps}, timeout=DRAIN_S)
        for error in self._pumps.result() if done else ():
            if error is not None:
                self._say(f"{self.spec.name}: its last output is lost: {error!r}")
        return code

    async def stop(self, within_s: float) -> None:
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(within_s):
                    await self._process.wait()
            except TimeoutError:
                if self._process.returncode is None:  # after a pause of this program, it may have ended in time
                    self._say(f"{self.spec.name} did not stop within {within_s:.0f} s: killed")
                    self._process.kill()
        await self.wait_ended()

    async def _pump_stdout(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - start makes it a pipe
        async for line in _lines(self._process.stdout):
            self.last.append(line)
            if self.spec.ready in line:
                self.ready.set()

    async def _pump_stderr(self) -> None:
        assert self._process.stderr is not None  # noqa: S101 - start makes it a pipe
        async for line in _lines(self._process.stderr):
            self.last.append(line)
            self._say(f"{self.spec.name} | {line}")


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    rest = b""
    while piece := await stream.read(65_536):
        *whole, rest = (rest + piece).split(b"\n")
        rest = rest[:MAX_LINE_BYTES]
        for line in whole:
            yield line[:MAX_LINE_BYTES].decode(errors="replace").rstrip()
    if rest:
        yield rest.decode(errors="replace").rstrip()


def _before_exec(parent: int, nice: int) -> Callable[[], None]:
    # Loaded here, because no library may be loaded between fork and exec.
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
