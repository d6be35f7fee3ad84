"""A member of a consumer group: workers share partitions, and the group remembers how far they came."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final, Literal

from aiokafka.errors import GroupAuthorizationFailedError, KafkaError, TopicAuthorizationFailedError

from schemas.topics import Topic
from services.bus.contact import backoff_s
from services.bus.group_session import CommitMode, GroupSession, OnPartitions, Plan
from services.bus.intake import Intake
from services.bus.offsets import OffsetBook
from services.bus.records import Handler, TopicPartitions, Wants
from services.bus.replay import Replay
from services.bus.room import Room
from services.bus.settings import BusSettings
from services.runtime.errors import UserError
from services.runtime.logging import logger

_log = logger("bus")

HEALTHY_S: Final = 30.0
"""A session that lasted so long was a good one: after it a failure is said again, and waits briefly again."""


class GroupReader:
    """Reads the partitions the group gives it.

    Args:
        settings: Where and how.
        topics: What to read. Members get the same partition numbers of all topics with equally many partitions.
        group: The consumer group.
        handler: See ``services.bus.records.Handler``. With None nothing is read: the group only deals partitions out.
        wants: Records it says no to are passed over without decoding.
        room: Backpressure; see ``Room``.
        newer: Records written for a newer reader come as ``Unread`` too; else they are only counted.
        start: Where to begin when the group has no committed offset.
        on_assigned: Told all partitions held from now on, before any of their records; may be a coroutine function.
        on_revoked: Told what is taken away, after the last record of it; may be a coroutine function. Not told when
            ``run`` ends.
        commit: ``on_accept`` commits when the handler has returned; ``manual`` when ``done`` was called for a record
            and all before it; ``never`` leaves the group's offsets alone.
        rewind_ms: A partition that was not held just before begins this far back in time, whatever is committed; one
            that was goes on where it was.
        on_caught_up: With ``rewind_ms``: told which partitions were read to where they ended at their assignment.
        instance_id: Static membership: a restart within the session timeout keeps its partitions. Two processes with
            one id would take the partitions from each other for ever.
    """

    def __init__(  # noqa: PLR0913 - one keyword for each thing a worker decides
        self,
        settings: BusSettings,
        *,
        topics: Sequence[Topic],
        group: str,
        handler: Handler | None,
        wants: Wants | None = None,
        newer: bool = False,
        room: Room | None = None,
        start: Literal["earliest", "latest"] = "earliest",
        on_assigned: OnPartitions | None = None,
        on_revoked: OnPartitions | None = None,
        commit: CommitMode = "on_accept",
        rewind_ms: int | None = None,
        on_caught_up: Callable[[TopicPartitions], None] | None = None,
        instance_id: str | None = None,
    ) -> None:
        self._settings = settings
        self._plan = Plan(
            topics=tuple(topic.name for topic in topics),
            group=group,
            handler=handler,
            room=room,
            start=start,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
            commit=commit,
            rewind_ms=rewind_ms,
            on_caught_up=on_caught_up,
            instance_id=instance_id,
        )
        self._intake = Intake(wants, newer=newer)
        self._book = OffsetBook()
        self._replay = Replay()
        self._session: GroupSession | None = None

    async def run(self) -> None:
        """Reads until cancelled; while the broker is away it waits, says so once, and goes on.

        Raises:
            UserError: The broker refuses the credentials, or does not let us read.
        """
        attempt = 0
        while True:
            began = time.monotonic()
            self._session = GroupSession(
                self._settings, self._plan, intake=self._intake, book=self._book, replay=self._replay
            )
            try:
                await self._session.run()
            except (GroupAuthorizationFailedError, TopicAuthorizationFailedError) as error:
                raise UserError(f"group {self._plan.group}: the broker does not let this user read: {error}") from None
            except KafkaError as error:
                attempt = 1 if time.monotonic() - began > HEALTHY_S else attempt + 1
                if attempt == 1:
                    _log.warning("group %s: joining again after %r", self._plan.group, error)
                await asyncio.sleep(backoff_s(attempt))

    def done(self, topic: str, partition: int, offset: int) -> None:
        """Says that the work on a record is over (commit mode ``manual``); a stale one is ignored."""
        if self._session is not None:
            self._session.done((topic, partition), offset)
