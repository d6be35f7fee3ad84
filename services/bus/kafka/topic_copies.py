from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from services.bus.kafka.topic_settings import read_setting
from services.bus.settings import BusSettings
from services.runtime.errors import UserError
from services.runtime.logging import logger

_log = logger("bus")

MIN_INSYNC_SETTING: Final = "min.insync.replicas"

MOST_COPIES: Final = 3
"""Default replication factor, if the cluster has at least this many brokers."""

_UNKNOWN: Final = 2**15
"""Value assumed for a topic whose settings this user is not allowed to read. It is so large that no warning follows."""


class Copies(NamedTuple):
    replication: int
    min_insync: int

    def __str__(self) -> str:
        return f"replication factor {self.replication} and {MIN_INSYNC_SETTING}={self.min_insync}"


def wanted_copies(settings: BusSettings, brokers: int) -> Copies:
    """Return the replication factor and ``min.insync.replicas`` of a new topic.

    A setting of 0 means the default. The default replication factor is 3, or the number of brokers if that is smaller.
    The default ``min.insync.replicas`` is 2 if the replication factor is 3 or more, else 1.

    Raises:
        UserError: ``min.insync.replicas`` is larger than the replication factor, so no record would be acknowledged.
    """
    replication = replication_factor(settings, brokers)
    min_insync = settings.min_insync_replicas or (2 if replication >= MOST_COPIES else 1)
    if min_insync > replication:
        raise UserError(
            f"RAILBUS_MIN_INSYNC_REPLICAS={min_insync} needs as many copies, and a topic gets {replication} here:"
            " lower it, or raise RAILBUS_REPLICATION and the number of brokers"
        )
    return Copies(replication, min_insync)


def replication_factor(settings: BusSettings, brokers: int) -> int:
    return settings.replication or max(1, min(MOST_COPIES, brokers))


def expected_copies(settings: BusSettings, brokers: int) -> Copies | None:
    """Return the copies that an existing topic should have, at least; None if too few brokers run to know it.

    Raises:
        UserError: Like ``wanted_copies``, but only if ``settings.replication`` is set.
    """
    # ``brokers`` counts only those that run now. The topic may have copies on others.
    if not settings.replication and settings.min_insync_replicas > replication_factor(settings, brokers):
        return None
    return wanted_copies(settings, brokers)


async def warn_of_fewer_copies(admin: Any, wanted: Copies, replications: Mapping[str, int]) -> None:
    values, refusals = await read_setting(admin, MIN_INSYNC_SETTING, replications)
    min_insyncs = {topic: int(value or 1) for topic, value in values.items()}
    min_insyncs |= dict.fromkeys((refusal.topic for refusal in refusals), _UNKNOWN)
    found = {name: Copies(copies, min_insyncs[name]) for name, copies in replications.items()}
    text = complaint(wanted, found)
    if text is not None:
        _log.warning("%s", text)


def complaint(wanted: Copies, found: Mapping[str, Copies]) -> str | None:
    fewer = {
        name: copies
        for name, copies in found.items()
        if copies.replication < wanted.replication or copies.min_insync < wanted.min_insync
    }
    if not fewer:
        return None
    least = min(fewer.values())
    return (
        f"{', '.join(fewer)}: {least}, where {wanted} were expected; a lost broker can take acknowledged records with"
        " it. Raise them with kafka-reassign-partitions.sh and kafka-configs.sh, or, if this is meant, set"
        f" RAILBUS_REPLICATION={least.replication} and RAILBUS_MIN_INSYNC_REPLICAS={least.min_insync}"
    )
