"""Run checks, each with a time limit. A check that ends with an error is tried again a few times.

The number of concurrent checks is bounded, in total and for each tenant.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

from services.policy import FoundSpan, Policy
from services.processor.fair_queue import FairQueue
from services.runtime.logging import logger
from services.safety.decide.check_types import CheckOutcome, CheckRequest, CheckResult, Tier, Unchecked

MAX_WORKERS: Final = 32
"""Maximum number of concurrent checks."""

MAX_PER_TENANT: Final = 8
"""Maximum number of concurrent checks of one tenant, so that its slow texts do not use up all workers."""

SWEEP_S: Final = 0.05
"""Interval in seconds at which time limits are checked. A check may be cancelled up to this long after its limit."""

_YIELD_EVERY: Final = 8
"""Number of checks after which a worker yields to the event loop. Checks that never wait would block the loop."""

_log = logger("safety")


class CheckFailed(Exception):
    """A check that gave no answer. The message must not contain user text."""


class Check(Protocol):
    async def find(self, text: str) -> tuple[FoundSpan, ...]:
        """Return the findings in the text. If a check only says yes or no, its finding spans the whole text.

        Raises:
            CheckFailed: The check gave no answer.
        """

    async def close(self) -> None: ...


CheckFactory = Callable[[Policy], Awaitable[Check]]
"""A function that builds a check. It raises ``BrokenPolicy`` if the policy's configuration of the check is unusable."""

ChecksOf = Callable[[CheckRequest], Mapping[Tier, Check]]
OnOutcome = Callable[[CheckRequest, CheckOutcome], None]


# Thousands of short steps begin each second, and `asyncio.timeout` would cost more than the steps.
class TimeoutSweeper:
    """Cancels a task if its time limit passes before ``end`` is called for it. One timer serves all tasks."""

    def __init__(self) -> None:
        self._due_s: dict[asyncio.Task[object], float] = {}
        self._cancelled: set[asyncio.Task[object]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, task: asyncio.Task[object], limit_s: float) -> None:
        loop = task.get_loop()
        self._due_s[task] = loop.time() + limit_s
        if self._timer is None:
            self._timer = loop.call_later(SWEEP_S, self._sweep, loop)

    def end(self, task: asyncio.Task[object]) -> None:
        self._due_s.pop(task, None)
        if task in self._cancelled:  # the check answered its cancellation with an error of its own, or with a result
            self._cancelled.discard(task)
            task.uncancel()

    def was_overdue(self, task: asyncio.Task[object]) -> bool:
        """Return whether ``task`` was cancelled only because its time limit passed.

        If the time limit passed, undo this cancellation with ``Task.uncancel``. If anyone else has cancelled the task,
        the task stays cancelled.
        """
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


class CheckExecutor:
    """Runs checks in asyncio tasks.

    Args:
        checks_of: Called with a ``CheckRequest``. Returns the checks of the request's policy, by tier.
        on_outcome: Called with each outcome, in the event loop.
        matters: Returns whether a check is still needed. A check that is no longer needed is not run.
    """

    def __init__(
        self, checks_of: ChecksOf, on_outcome: OnOutcome, matters: Callable[[CheckRequest], bool] = lambda _: True
    ) -> None:
        self._checks_of = checks_of
        self._on_outcome = on_outcome
        self._matters = matters
        self._queue: FairQueue[CheckRequest] = FairQueue()  # bounded by open requests and max_waiting_chars
        self._running: Counter[str] = Counter()
        self._workers: set[asyncio.Task[None]] = set()
        self._timeouts = TimeoutSweeper()

    def put(self, check: CheckRequest) -> None:
        self._queue.put(check.tenant, check)
        if len(self._workers) < MAX_WORKERS and self._running[check.tenant] < MAX_PER_TENANT:
            worker = asyncio.get_running_loop().create_task(self._work(), name="safety-check")
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)

    async def stop(self) -> None:
        """Cancel all checks. ``on_outcome`` is not called for them."""
        self._queue.clear()
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)

    async def _work(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "a worker is a task"  # noqa: S101 - for the type checker
        done = 0
        while (turn := self._queue.get(self._full_tenants())) is not None:
            tenant, check = turn
            if not self._matters(check):
                continue
            self._running[tenant] += 1
            try:
                outcome = await self._run(check, task)
            finally:
                self._running[tenant] -= 1
                if not self._running[tenant]:
                    del self._running[tenant]
            self._on_outcome(check, outcome)
            done += 1
            if done % _YIELD_EVERY == 0:
                await asyncio.sleep(0)

    def _full_tenants(self) -> list[str]:
        return [tenant for tenant, running in self._running.items() if running >= MAX_PER_TENANT]

    async def _run(self, check: CheckRequest, task: asyncio.Task[object]) -> CheckOutcome:
        safety = check.policy.document.safety
        windows = safety.windows if check.tier == 1 else safety.classifier_windows
        reason = ""
        for _ in range(windows.retries + 1):
            self._timeouts.begin(task, windows.timeout_ms / 1_000)
            try:
                return CheckResult(await self._checks_of(check)[check.tier].find(check.text))
            except asyncio.CancelledError:
                if self._timeouts.was_overdue(task):
                    reason = f"no answer within {windows.timeout_ms} ms"
                elif task.cancelling():
                    raise
                else:  # what the check waited for was cancelled, not the check
                    reason = "CancelledError"
            except CheckFailed as error:
                reason = str(error)
            except Exception as error:  # noqa: BLE001 - whatever a check raises, the text was not checked
                reason = type(error).__name__
            finally:
                self._timeouts.end(task)
        _log.error("tier %d: a window stays unchecked after %d attempts: %s", check.tier, windows.retries + 1, reason)
        return Unchecked(reason)
