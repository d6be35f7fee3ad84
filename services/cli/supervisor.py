"""Starts processes in order, keeps them running, stops them in reverse order."""

import asyncio
import itertools
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from services.cli.child import Child, Say
from services.cli.fleet import Launch
from services.cli.restarts import Again, RestartPolicy, describe_end
from services.runtime.errors import UserError, first_of
from services.runtime.process import EXIT_USER

STOP_S: Final = 5.0
"""Longest time a stage of services gets to stop before it is killed; three stages fit into the process's own grace."""


class Supervisor:
    """The processes of one tree.

    Args:
        fleet: What to start.
        say: Takes one line for the operator.
        started: Told whenever a process was started.
        policy: When a service that ended is started again.
    """

    def __init__(
        self,
        fleet: Sequence[Launch],
        say: Say,
        started: Callable[[], None] = lambda: None,
        policy: RestartPolicy | None = None,
    ) -> None:
        self._fleet = fleet
        self._say = say
        self._started = started
        self._policy = policy or RestartPolicy()
        self._children: dict[str, Child] = {}

    @property
    def pids(self) -> dict[str, int]:
        """Process id of each service that runs."""
        return {name: child.pid for name, child in self._children.items()}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Everything serves while the block runs; a service that ends is started again.

        Raises:
            UserError: A service says that the operator must put something right, or ends again and again.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                keepers: list[asyncio.Task[None]] = []
                for launches in self._waves():
                    serving = {launch: asyncio.Event() for launch in launches}
                    keepers += [tasks.create_task(self._keep(*each)) for each in serving.items()]
                    for event in serving.values():
                        await event.wait()
                yield
                for keeper in keepers:
                    keeper.cancel()
        except ExceptionGroup as group:
            raise first_of(group) from None
        finally:
            await self._stop()

    def _waves(self) -> list[list[Launch]]:
        """The servers, and then everything that needs them."""
        servers = [launch for launch in self._fleet if launch.stage == 0]
        return [servers, [launch for launch in self._fleet if launch.stage > 0]]

    async def _keep(self, launch: Launch, serving: asyncio.Event) -> None:
        ends: list[float] = []
        while True:
            code = await self._live(launch, serving)
            if code == EXIT_USER:
                raise UserError(f"{launch.name} cannot run: {self._last_words(launch)}")
            ends.append(time.monotonic())
            decision = self._policy.decide(ends, ends[-1])
            how = describe_end(code)
            if not isinstance(decision, Again):
                raise UserError(
                    f"{launch.name} ended {decision.times} times within {decision.within_s:.0f} s, last with {how}:"
                    f" {self._last_words(launch)}"
                )
            self._say(f"{launch.name} ended with {how}; starting it again in {decision.after_s:.1f} s")
            await asyncio.sleep(decision.after_s)

    async def _live(self, launch: Launch, serving: asyncio.Event) -> int:
        """One process from start to end; its exit status."""
        child = self._children[launch.name] = await Child.start(launch, dict(os.environ), self._say)
        self._started()
        ended = asyncio.ensure_future(child.ended())
        ready = asyncio.ensure_future(child.ready.wait())
        try:
            await asyncio.wait({ended, ready}, timeout=launch.ready_s, return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                serving.set()
            elif not ended.done():
                self._say(f"{launch.name} did not serve within {launch.ready_s:.0f} s")
                await child.stop(STOP_S)
            return await ended
        finally:
            ready.cancel()
            ended.cancel()

    def _last_words(self, launch: Launch) -> str:
        lines = [line for line in self._children[launch.name].last if line]
        return lines[-1].removeprefix(f"railbus {launch.name}: ") if lines else "it said nothing"

    async def _stop(self) -> None:
        stages = itertools.groupby(reversed(self._fleet), key=lambda launch: launch.stage)
        for _, stage in stages:
            there = [child for launch in stage if (child := self._children.get(launch.name)) is not None]
            await asyncio.gather(*(child.stop(STOP_S) for child in there))
