"""Deadlines for tasks that do thousands of short things a second: one glance at the clock for all, now and then."""

import asyncio
from typing import Final

SWEEP_S: Final = 0.05
"""How much later than its deadline a task may be cancelled."""


class Watch:
    """Cancels the step a task is at when that takes too long. ``asyncio.timeout`` would cost more than the steps do."""

    def __init__(self) -> None:
        self._due_s: dict[asyncio.Task[object], float] = {}
        self._cancelled: set[asyncio.Task[object]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, task: asyncio.Task[object], limit_s: float) -> None:
        """The task begins a step."""
        loop = task.get_loop()
        self._due_s[task] = loop.time() + limit_s
        if self._timer is None:
            self._timer = loop.call_later(SWEEP_S, self._sweep, loop)

    def end(self, task: asyncio.Task[object]) -> None:
        """The step is over; to be called however it ended."""
        self._due_s.pop(task, None)

    def was_overdue(self, task: asyncio.Task[object]) -> bool:
        """Whether a cancellation that the task sees is ours; if so it is taken back."""
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
