"""Start processes in order, restart them, and stop them in reverse order."""

import asyncio
import itertools
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from services.cli.tree.child import Child, LineSink
from services.cli.tree.process_specs import ProcessSpec
from services.cli.tree.restarts import RestartAfter, RestartPolicy, describe_exit
from services.runtime.errors import UnavailableError, UserError
from services.runtime.process import EXIT_CRASH, EXIT_USER
from services.runtime.task_groups import first_error

STOP_S: Final = 5.0
"""Maximum time for the processes of one stage to stop before they are killed. All stages together take less than
``GRACE_S`` of ``services.runtime.process``, after which the supervisor itself would end at once."""

MAX_STARTS: Final = 2
"""Maximum number of starts of a service that never served. Without this maximum, ``railbus up`` would wait for ever."""


class Supervisor:
    """Starts, restarts and stops the processes of one ``railbus up``.

    Args:
        specs: The processes in start order.
        say: Called with each status line.
        started: Called without arguments after each start of a process, before the process is ready.
        policy: Limits for restarts; None for the default.
    """

    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        say: LineSink,
        started: Callable[[], None] = lambda: None,
        policy: RestartPolicy | None = None,
    ) -> None:
        self._specs = specs
        self._say = say
        self._started = started
        self._policy = policy or RestartPolicy()
        self._children: dict[str, Child] = {}

    @property
    def pids(self) -> dict[str, int]:
        """Process ids, by process name. A process that has ended keeps its id until it is restarted."""
        return {name: child.pid for name, child in self._children.items()}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep the processes running during the ``async with`` block.

        The block starts when every required process is ready.

        Raises:
            UserError: A required process failed, or was not ready in time.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                runners: list[asyncio.Task[None]] = []
                for specs in self._start_groups():
                    serving = {spec: asyncio.Event() for spec in specs}
                    runners += [tasks.create_task(self._keep_running(*item)) for item in serving.items()]
                    for event in serving.values():
                        await event.wait()
                runners += [tasks.create_task(self._keep_optional(spec)) for spec in self._specs if not spec.awaited]
                yield
                for runner in runners:
                    runner.cancel()
        except ExceptionGroup as group:
            raise first_error(group) from None
        finally:
            await self._stop()

    def _start_groups(self) -> list[list[ProcessSpec]]:
        servers = [spec for spec in self._specs if spec.stage == 0]
        return [servers, [spec for spec in self._specs if spec.stage > 0 and spec.awaited]]

    async def _keep_optional(self, spec: ProcessSpec) -> None:
        try:
            await self._keep_running(spec, asyncio.Event())
        except UserError as error:
            self._say(f"going on without {spec.name} until the next start: {error}")

    async def _keep_running(self, spec: ProcessSpec, serving: asyncio.Event) -> None:
        ends: list[float] = []
        timeouts = 0
        while True:
            code = await self._run_once(spec, serving)
            if code == EXIT_USER:
                raise UserError(f"{spec.name} cannot run: {self._last_line(spec)}")
            timeouts = 0 if serving.is_set() or code is not None else timeouts + 1
            if timeouts >= MAX_STARTS:
                late = f"did not serve within {spec.ready_s:.0f} s in {timeouts} starts"
                raise UserError(f"{spec.name} {late}: {self._last_line(spec)}")
            ends.append(time.monotonic())
            decision = self._policy.decide(ends, ends[-1])
            how = "no ready line" if code is None else describe_exit(code)
            if not isinstance(decision, RestartAfter):
                raise UserError(
                    f"{spec.name} ended {decision.times} times within {decision.within_s:.0f} s, last with {how}:"
                    f" {self._last_line(spec)}"
                )
            self._say(f"{spec.name} ended with {how}; starting it again in {decision.after_s:.1f} s")
            await asyncio.sleep(decision.after_s)

    async def _run_once(self, spec: ProcessSpec, serving: asyncio.Event) -> int | None:
        began = time.monotonic()
        try:
            child = self._children[spec.name] = await Child.start(spec, dict(os.environ), self._say)
        except UnavailableError as error:  # the machine is short of memory or processes at this moment
            self._say(str(error))
            return EXIT_CRASH
        self._started()
        ended = asyncio.ensure_future(child.wait_ended())
        ready = asyncio.ensure_future(child.ready.wait())
        try:
            await asyncio.wait({ended, ready}, timeout=spec.ready_s, return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                self._say(f"{spec.name} ready after {time.monotonic() - began:.1f} s")
                serving.set()
            elif not ended.done():
                self._say(f"{spec.name} did not serve within {spec.ready_s:.0f} s")
                await child.stop(STOP_S)
                return None
            return await ended
        finally:
            ready.cancel()
            ended.cancel()

    def _last_line(self, spec: ProcessSpec) -> str:
        child = self._children.get(spec.name)
        lines = [line for line in child.last if line] if child is not None else []
        return lines[-1].removeprefix(f"railbus {spec.name}: ") if lines else "it wrote nothing"

    async def _stop(self) -> None:
        stages = itertools.groupby(reversed(self._specs), key=lambda spec: spec.stage)
        for _, stage in stages:
            running = [child for spec in stage if (child := self._children.get(spec.name)) is not None]
            await asyncio.gather(*(child.stop(STOP_S) for child in running))
