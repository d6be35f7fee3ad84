"""Runs looks: a bounded number at once, a bounded share for each tenant, each with a deadline and bounded retries."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from services.runtime.logging import logger
from services.safety.checks import Check, CheckFailed
from services.safety.fair import FairQueue
from services.safety.looks import Answer, Broke, Look, Seen, Tier

MAX_WORKERS: Final = 32
"""Looks at once."""

MAX_PER_TENANT: Final = 8
"""Of those, for one tenant: its slow texts do not take the places of others."""

SWEEP_S: Final = 0.05
"""How much later than its deadline a look may be cancelled."""

_YIELD_EVERY: Final = 8
"""Looks that never wait are a loop of their own; after so many the event loop gets its turn."""

_log = logger("safety")

Checks = Callable[[Look], Mapping[Tier, Check]]
Answered = Callable[[Look, Answer], None]


class TimeoutSweeper:
    """Cancel the step a task is at when it takes too long; one timer for all tasks.

    There are thousands of short steps a second: ``asyncio.timeout`` would cost more than they do.
    """

    def __init__(self) -> None:
        self._due_s: dict[asyncio.Task[object], float] = {}
        self._cancelled: set[asyncio.Task[object]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, task: asyncio.Task[object], limit_s: float) -> None:
        """Begin a step of the task."""
        loop = task.get_loop()
        self._due_s[task] = loop.time() + limit_s
        if self._timer is None:
            self._timer = loop.call_later(SWEEP_S, self._sweep, loop)

    def end(self, task: asyncio.Task[object]) -> None:
        """End the step; call it however the step ended."""
        self._due_s.pop(task, None)

    def was_overdue(self, task: asyncio.Task[object]) -> bool:
        """Return whether this cancelled the task; if so, uncancel it."""
        if task not in self._cancelled:
            return False
        self._cancelled.discard(task)
        return task.uncancel() == 0

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        now_s = loop.time()
        for task in [task for task, due_s in self._due_s.items() if due_s < now_s]:
            del self._due_s[task]
            self._cancelled.add(task)
            task.cancel()
        self._timer = loop.call_later(SWEEP_S, self._sweep, loop) if self._due_s else None


class Checker:
    """Takes looks and gives each back with its answer.

    Args:
        checks: The checks of a look's policy version.
        answered: Told every answer, in the event loop.
        matters: Whether anybody still waits for the answer.
    """

    def __init__(self, checks: Checks, answered: Answered, matters: Callable[[Look], bool] = lambda _: True) -> None:
        self._checks = checks
        self._answered = answered
        self._matters = matters
        self._queue: FairQueue[Look] = FairQueue()  # bounded by open requests and max_waiting_chars
        self._running: dict[str, int] = {}
        self._full: set[str] = set()
        self._workers: set[asyncio.Task[None]] = set()
        self._timeouts = TimeoutSweeper()

    def put(self, look: Look) -> None:
        """Queue a look."""
        self._queue.put(look.tenant, look)
        if len(self._workers) < MAX_WORKERS and look.tenant not in self._full:
            worker = asyncio.get_running_loop().create_task(self._work(), name="safety-look")
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)

    async def stop(self) -> None:
        """Cancel what runs; nothing is answered any more."""
        self._queue.clear()
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)

    async def _work(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "a worker is a task"  # noqa: S101 - for the type checker
        done = 0
        while (turn := self._queue.get(self._full)) is not None:
            tenant, look = turn
            if not self._matters(look):
                continue
            running = self._running[tenant] = self._running.get(tenant, 0) + 1
            if running >= MAX_PER_TENANT:
                self._full.add(tenant)
            try:
                answer = await self._answer(look, task)
            finally:
                self._leave(tenant)
            self._answered(look, answer)
            done += 1
            if done % _YIELD_EVERY == 0:
                await asyncio.sleep(0)

    def _leave(self, tenant: str) -> None:
        running = self._running[tenant] - 1
        if running:
            self._running[tenant] = running
        else:
            del self._running[tenant]
        self._full.discard(tenant)

    async def _answer(self, look: Look, task: asyncio.Task[object]) -> Answer:
        safety = look.policy.document.safety
        windows = safety.windows if look.tier == 1 else safety.classifier_windows
        reason = ""
        for _ in range(windows.retries + 1):
            self._timeouts.begin(task, windows.timeout_ms / 1_000)
            try:
                return Seen(await self._checks(look)[look.tier].look(look.text))
            except asyncio.CancelledError:
                if not self._timeouts.was_overdue(task):
                    raise
                reason = f"no answer within {windows.timeout_ms} ms"
            except CheckFailed as error:
                reason = str(error)
            except Exception as error:  # noqa: BLE001 - whatever a check raises, the text was not checked
                reason = type(error).__name__
            finally:
                self._timeouts.end(task)
        _log.error("tier %d: a window stays unchecked after %d tries: %s", look.tier, windows.retries + 1, reason)
        return Broke(reason)
