import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import (
    KafkaError,
    LeaderNotAvailableError,
    NotControllerError,
    TopicAlreadyExistsError,
    for_code,
)

from schemas.topics import TIMESTAMP_TYPE, TOPICS, Topic
from services.bus.kafka.broker_health import backoff_s, wait_for_broker
from services.bus.kafka.clients import common_options
from services.bus.kafka.topic_copies import (
    MIN_INSYNC_SETTING,
    Copies,
    expected_copies,
    replication_factor,
    wanted_copies,
    warn_of_fewer_copies,
)
from services.bus.kafka.topic_settings import SettingRefusal, alter_setting, read_setting
from services.bus.records import Partition
from services.bus.settings import BusSettings
from services.runtime.errors import UserError
from services.runtime.logging import logger

_log = logger("bus")

T = TypeVar("T")

TIMESTAMP_SETTING: Final = "message.timestamp.type"

READY_TRIES: Final = 40
"""Maximum number of checks whether all new topics have leaders. With the backoff, the checks take about a minute."""


async def ensure_topics(settings: BusSettings, topics: Sequence[Topic] = TOPICS) -> None:
    """Wait until all topics exist and every partition has a leader. Create the missing topics.

    Make the broker set the timestamps of all records (``LogAppendTime``). Log a warning if a topic has fewer copies
    than ``wanted_copies()``. Several processes may call this at once.

    Raises:
        UserError: A topic has another number of partitions than the settings say, the broker refuses to create a topic,
            a new topic gets no leader, or the settings contradict each other.
    """
    await _persistently(settings, lambda: _ensure(settings, topics), "topics cannot be created or checked yet")


@dataclass(frozen=True, slots=True)
class ClusterTopics:
    """The topics of a cluster, and their partitions.

    Attributes:
        counts: Number of partitions of each topic, by topic name.
        leaderless: The partitions that have no leader. Their records can be neither read nor written.
    """

    counts: Mapping[str, int]
    leaderless: frozenset[Partition]

    def check_leaders(self, partitions: Iterable[tuple[Topic, int]]) -> None:
        """Check that each of these partitions has a leader. Without one, a read would wait for it.

        Raises:
            UserError: A partition has no leader.
        """
        for topic, number in partitions:
            if (topic.name, number) in self.leaderless:
                raise UserError(
                    f"partition {number} of topic {topic.name} has no leader: start the brokers that have its copies"
                )


async def cluster_topics(settings: BusSettings) -> ClusterTopics:
    """Return all topics of the cluster. Wait until the broker answers."""

    async def describe() -> ClusterTopics:
        async with _admin(settings) as admin:
            return await _describe(admin)

    return await _persistently(settings, describe, "topics cannot be listed yet")


async def partition_counts(settings: BusSettings) -> Mapping[str, int]:
    """Return the number of partitions of each topic, by topic name. Wait until the broker answers."""
    return (await cluster_topics(settings)).counts


async def wanted_replication(settings: BusSettings) -> int:
    """Return the replication factor for topics that a client library such as Faust creates itself.

    Wait until the broker answers.
    """

    async def choose() -> int:
        async with _admin(settings) as admin:
            brokers = (await admin.describe_cluster())["brokers"]
        return replication_factor(settings, len(brokers))

    return await _persistently(settings, choose, "the brokers cannot be counted yet")


async def _persistently(settings: BusSettings, work: Callable[[], Awaitable[T]], trouble: str) -> T:
    for attempt in itertools.count():
        await wait_for_broker(settings)
        try:
            return await work()
        except (KafkaError, OSError) as error:
            if attempt == 3:
                _log.warning("%s: %r", trouble, error)
            await asyncio.sleep(backoff_s(attempt))
    raise AssertionError("unreachable")


@asynccontextmanager
async def _admin(settings: BusSettings) -> AsyncIterator[Any]:
    admin = AIOKafkaAdminClient(**common_options(settings, "railbus-topics"))
    try:
        await admin.start()
        yield admin
    finally:
        await admin.close()


async def _ensure(settings: BusSettings, topics: Sequence[Topic]) -> None:
    async with _admin(settings) as admin:
        there = (await _describe(admin)).counts
        missing = [topic for topic in topics if topic.name not in there]
        brokers = len((await admin.describe_cluster())["brokers"])
        expected = expected_copies(settings, brokers)
        if missing:
            await _create(admin, settings, wanted_copies(settings, brokers), missing)
        for attempt in range(READY_TRIES):
            there = await _led_counts(admin)
            if all(topic.name in there for topic in missing):
                break
            await asyncio.sleep(backoff_s(attempt))
        _check(settings, topics, there, created=missing)
        await use_log_append_time(admin, settings.bootstrap, [topic.name for topic in topics])
        if expected is not None:
            await warn_of_fewer_copies(admin, expected, await _replications(admin, topics))


def _check(
    settings: BusSettings, topics: Sequence[Topic], there: Mapping[str, int], *, created: Sequence[Topic]
) -> None:
    for topic in topics:
        wanted, found = topic.partitions(settings.partitions), there.get(topic.name)
        if found is None and topic in created:
            raise UserError(f"topic {topic.name} was created but no leader was elected: look at the broker's log")
        if found is None:  # for example while brokers restart
            raise LeaderNotAvailableError(f"topic {topic.name}: a partition has no leader")
        if found != wanted:
            raise UserError(
                f"topic {topic.name} has {found} partition(s), RAILBUS_PARTITIONS={settings.partitions} needs {wanted}:"
                " set RAILBUS_PARTITIONS to what the cluster has, or use another cluster (another number would"
                " move requests that are on the log to other partitions)"
            )


async def _describe(admin: Any) -> ClusterTopics:
    described = [topic for topic in await admin.describe_topics() if topic["error_code"] == 0 and topic["partitions"]]
    return ClusterTopics(
        counts={topic["topic"]: len(topic["partitions"]) for topic in described},
        leaderless=frozenset(
            (topic["topic"], part["partition"])
            for topic in described
            for part in topic["partitions"]
            if part["leader"] < 0
        ),
    )


async def _led_counts(admin: Any) -> dict[str, int]:
    there = await _describe(admin)
    waiting = {name for name, _ in there.leaderless}
    return {name: count for name, count in there.counts.items() if name not in waiting}


async def _replications(admin: Any, topics: Sequence[Topic]) -> dict[str, int]:
    described = await admin.describe_topics([topic.name for topic in topics])
    for topic in described:
        if topic["error_code"]:  # this node does not know the topic yet, although another one does
            raise for_code(topic["error_code"])(topic["topic"])
    return {topic["topic"]: min(len(p["replicas"]) for p in topic["partitions"]) for topic in described}


async def use_log_append_time(admin: Any, bootstrap: str, topics: Iterable[str]) -> None:
    """Let the broker set the timestamps of these topics' records (``LogAppendTime``). If it refuses, log a warning.

    Raises:
        KafkaError: The broker could not answer now.
    """
    types, refusals = await read_setting(admin, TIMESTAMP_SETTING, topics)
    others = [topic for topic, timestamp_type in types.items() if timestamp_type != TIMESTAMP_TYPE]
    if others:
        refusals += await alter_setting(admin, TIMESTAMP_SETTING, TIMESTAMP_TYPE, others)
    if refusals:
        _log.warning("%s", _complaint(refusals, bootstrap))


def _complaint(refusals: list[SettingRefusal], bootstrap: str) -> str:
    names = ", ".join(refusal.topic for refusal in refusals)
    return (
        f"records of {names} have their writers' times, and the broker does not let us change that"
        f" ({refusals[0].why}): deadlines are measured by the writers' clocks, and are wrong where those differ."
        f" For each of these topics: kafka-configs.sh --bootstrap-server {bootstrap} --alter --entity-type topics"
        f" --entity-name {refusals[0].topic} --add-config {TIMESTAMP_SETTING}={TIMESTAMP_TYPE}"
    )


async def _create(admin: Any, settings: BusSettings, copies: Copies, topics: Sequence[Topic]) -> None:
    client = admin._client  # noqa: SLF001 - without a controller, aiokafka's ``create_topics`` raises an AttributeError
    if client.cluster.controller is None:
        await client.force_metadata_update()
    if client.cluster.controller is None:
        raise NotControllerError("the cluster has no controller now")
    answer = await admin.create_topics(
        [
            NewTopic(
                topic.name,
                topic.partitions(settings.partitions),
                copies.replication,
                topic_configs={
                    MIN_INSYNC_SETTING: str(copies.min_insync),
                    "retention.ms": str(topic.retention_ms),
                    "cleanup.policy": "delete",
                    TIMESTAMP_SETTING: TIMESTAMP_TYPE,
                },
            )
            for topic in topics
        ]
    )
    for name, code, *rest in answer.topic_errors:
        error = for_code(code)
        if code and error is not TopicAlreadyExistsError:
            if getattr(error, "retriable", False):
                raise error
            raise UserError(f"the broker does not create topic {name}: {(rest and rest[0]) or error.__name__}")
