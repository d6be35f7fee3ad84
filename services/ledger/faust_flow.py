"""Faust, without a way in which it loses records.

When Faust has recovered its tables it seeks to the committed offsets, and then resumes the flow of its queues, which it
had already resumed to read the changelogs. To resume is also to clear: what was read between the two was dropped, and
its offset was committed with the next record's. On a busy machine that befell one start in ten.
"""

from functools import cached_property
from typing import Any

import faust
from mode.utils.queues import FlowControlEvent


class FlowControl(FlowControlEvent):
    """Clears the queues when a flow that was suspended is resumed, and at no other time."""

    def resume(self) -> None:
        if not self.is_active():
            super().resume()


class FaustApp(faust.App):
    """A Faust application with that flow control."""

    @cached_property
    def flow_control(self) -> FlowControl:
        return FlowControl(loop=self.loop)


class RecordsLost(RuntimeError):
    """Faust left out records; nothing beyond them was acknowledged, so a new process reads them."""


class OffsetGuard:
    """Sees to it that no record of a partition is left out. A repetition is allowed."""

    def __init__(self) -> None:
        self._next: dict[tuple[str, int], int] = {}

    def check(self, message: Any) -> None:
        """Note a record.

        Raises:
            RecordsLost: Records before it were not seen.
        """
        at = message.topic, message.partition
        expected = self._next.get(at, message.offset)
        if message.offset > expected:
            raise RecordsLost(f"Faust left out offsets {expected} to {message.offset - 1} of {at[0]}-{at[1]}")
        self._next[at] = message.offset + 1

    def forget(self) -> None:
        """Begin anew: after a rebalance another offset may be the first."""
        self._next.clear()
