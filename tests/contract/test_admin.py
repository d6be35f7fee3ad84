"""Test how topics and their settings are created, changed, described and deleted, and that wrong requests fail."""

from typing import Any

import pytest
from aiokafka.admin import NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import InvalidPartitionsError, for_code
from aiokafka.protocol.metadata import MetadataRequest

from services.bus.kafka.topic_settings import IncrementalAlterConfigs
from tests.contract import wire
from tests.contract.lab import KafkaClients, read_records, unique
from tests.support.waiting import until

NONE = 0
UNKNOWN_TOPIC = 3
INVALID_TOPIC = 17
ALREADY_EXISTS = 36
INVALID_PARTITIONS = 37
INVALID_REPLICATION_FACTOR = 38
INVALID_CONFIG = 40


async def _create(lab: KafkaClients, name: str, partitions: int = 1, replicas: int = 1, **more: Any) -> int:
    """Try to create a topic, and return the error code."""
    validate_only = more.pop("validate_only", False)
    new = NewTopic(name, num_partitions=partitions, replication_factor=replicas, **more)
    response = await (await lab.admin()).create_topics([new], validate_only=validate_only)
    return response.topic_errors[0][1]


async def test_a_new_topic_has_the_partitions_it_asked_for_on_this_broker(lab: KafkaClients) -> None:
    topic = await lab.topic(partitions=5)
    (described,) = await (await lab.admin()).describe_topics([topic])

    assert [p["partition"] for p in sorted(described["partitions"], key=lambda p: p["partition"])] == list(range(5))
    assert {p["leader"] for p in described["partitions"]} == {1}
    assert described["is_internal"] is False


async def test_the_cluster_is_one_broker_at_the_address_we_use(lab: KafkaClients) -> None:
    cluster = await (await lab.admin()).describe_cluster()
    host, port = lab.address.split(":")

    assert [(b["node_id"], b["host"], b["port"]) for b in cluster["brokers"]] == [(1, host, int(port))]
    assert cluster["controller_id"] == 1


@pytest.mark.parametrize(
    ("name", "given", "error"),
    [
        ("", {}, INVALID_TOPIC),
        (".", {}, INVALID_TOPIC),
        ("..", {}, INVALID_TOPIC),
        ("has space", {}, INVALID_TOPIC),
        ("slash/inside", {}, INVALID_TOPIC),
        ("x" * 250, {}, INVALID_TOPIC),
        ("none", {"partitions": 0}, INVALID_PARTITIONS),
        ("negative", {"partitions": -5}, INVALID_PARTITIONS),
        ("replicas", {"replicas": 3}, INVALID_REPLICATION_FACTOR),
        ("replicas", {"replicas": 0}, INVALID_REPLICATION_FACTOR),
        ("config", {"topic_configs": {"no.such.setting": "1"}}, INVALID_CONFIG),
        ("config", {"topic_configs": {"retention.ms": "soon"}}, INVALID_CONFIG),
        ("config", {"topic_configs": {"retention.ms": "-2"}}, INVALID_CONFIG),
        ("config", {"topic_configs": {"cleanup.policy": "burn"}}, INVALID_CONFIG),
    ],
)
async def test_a_topic_that_cannot_be_is_refused(
    lab: KafkaClients, name: str, given: dict[str, Any], error: int
) -> None:
    assert await _create(lab, name, **given) == error
    assert name not in await (await lab.admin()).list_topics()


async def test_a_topic_that_exists_is_not_made_again(lab: KafkaClients) -> None:
    topic = await lab.topic(partitions=2)
    await lab.put(topic, [b"kept"])

    assert await _create(lab, topic, partitions=3) == ALREADY_EXISTS
    assert [record.value for record in await read_records(await lab.reader(topic), 1)] == [b"kept"]


async def test_validate_only_makes_nothing(lab: KafkaClients) -> None:
    name = unique("topic")

    assert await _create(lab, name, validate_only=True) == NONE
    assert name not in await (await lab.admin()).list_topics()


async def test_several_topics_are_made_at_once_and_each_has_its_own_answer(lab: KafkaClients) -> None:
    good, bad = unique("topic"), "not good"
    new = [NewTopic(name, num_partitions=1, replication_factor=1) for name in (good, bad)]

    response = await (await lab.admin()).create_topics(new)

    assert {name: code for name, code, *_ in response.topic_errors} == {good: NONE, bad: INVALID_TOPIC}


async def test_a_deleted_topic_is_gone_and_its_name_is_free(lab: KafkaClients) -> None:
    topic = await lab.topic()
    await lab.put(topic, [b"old", b"old"])
    admin = await lab.admin()
    connection = await lab.connection()

    assert [code for _, code in (await admin.delete_topics([topic])).topic_error_codes] == [NONE]

    async def is_gone() -> bool:
        error, _ = await wire.produce(connection, topic, wire.batch([b"v"]))
        return error == UNKNOWN_TOPIC and topic not in await admin.list_topics()

    await until(is_gone, "the deleted topic is gone")
    await lab.create_topic(topic, configs={"retention.ms": "-1"})
    await lab.put(topic, [b"new"])
    assert [(r.offset, r.value) for r in await read_records(await lab.reader(topic), 1)] == [(0, b"new")]


async def test_deleting_what_is_not_there_is_an_error(lab: KafkaClients) -> None:
    response = await (await lab.admin()).delete_topics([unique("topic")])

    assert [code for _, code in response.topic_error_codes] == [UNKNOWN_TOPIC]


async def test_partitions_can_be_added_and_records_stay(lab: KafkaClients) -> None:
    topic = await lab.topic(partitions=2)
    await lab.put(topic, [b"before"], partition=1)
    admin = await lab.admin()

    await admin.create_partitions({topic: NewPartitions(4)})

    async def has_four() -> bool:
        (described,) = await admin.describe_topics([topic])
        return len([p for p in described["partitions"] if p["leader"] == 1]) == 4

    await until(has_four, "the topic has four partitions")
    await lab.put(topic, [b"after"], partition=3)
    records = await read_records(await lab.reader(topic, range(4)), 2)
    assert {(r.partition, r.value) for r in records} == {(1, b"before"), (3, b"after")}


@pytest.mark.parametrize("count", [1, 2])
async def test_partitions_cannot_be_taken_away(lab: KafkaClients, count: int) -> None:
    topic = await lab.topic(partitions=2)

    with pytest.raises(InvalidPartitionsError):
        await (await lab.admin()).create_partitions({topic: NewPartitions(count)})


async def test_partitions_of_an_unknown_topic_cannot_be_added(lab: KafkaClients) -> None:
    with pytest.raises(for_code(UNKNOWN_TOPIC)):
        await (await lab.admin()).create_partitions({unique("topic"): NewPartitions(2)})


async def test_settings_given_at_creation_are_described(lab: KafkaClients) -> None:
    configs = {"retention.ms": "86400000", "max.message.bytes": "2000000", "cleanup.policy": "delete"}
    topic = await lab.topic(configs=configs)

    assert {name: await lab.topic_config(topic, name) for name in configs} == configs


async def test_settings_can_be_changed_and_unnamed_ones_return_to_default(lab: KafkaClients) -> None:
    default = await lab.topic_config(await lab.topic(), "max.message.bytes")
    topic = await lab.topic(configs={"retention.ms": "1000000", "max.message.bytes": "5000"})

    assert await _alter(lab, topic, {"retention.ms": "2000000"}) == NONE

    assert await lab.topic_config(topic, "retention.ms") == "2000000"
    assert await lab.topic_config(topic, "max.message.bytes") == default


async def test_one_setting_can_be_changed_and_the_others_stay(lab: KafkaClients) -> None:
    topic = await lab.topic(configs={"retention.ms": "1000000", "max.message.bytes": "5000"})

    assert await _set(lab, topic, {"retention.ms": "2000000", "message.timestamp.type": "LogAppendTime"}) == NONE

    wanted = {"retention.ms": "2000000", "max.message.bytes": "5000", "message.timestamp.type": "LogAppendTime"}
    assert {name: await lab.topic_config(topic, name) for name in wanted} == wanted


@pytest.mark.parametrize("configs", [{"message.timestamp.type": "Mine"}, {"retention.ms": "soon"}, {"no.such": "1"}])
async def test_one_setting_that_cannot_be_is_refused_and_nothing_changes(
    lab: KafkaClients, configs: dict[str, str]
) -> None:
    topic = await lab.topic(configs={"retention.ms": "1000000"})

    assert await _set(lab, topic, configs) == INVALID_CONFIG
    assert await _set(lab, unique("topic"), {"retention.ms": "1"}) == UNKNOWN_TOPIC
    assert await lab.topic_config(topic, "retention.ms") == "1000000"


async def test_a_changed_setting_has_effect(lab: KafkaClients) -> None:
    topic = await lab.topic()
    connection = await lab.connection()
    await _alter(lab, topic, {"max.message.bytes": "1000"})

    async def is_refused() -> bool:
        return (await wire.produce(connection, topic, wire.batch([b"x" * 1500])))[0] != NONE

    await until(is_refused, "the new limit is obeyed")


@pytest.mark.parametrize("configs", [{"retention.ms": "soon"}, {"no.such.setting": "1"}])
async def test_settings_that_cannot_be_are_refused_and_nothing_changes(
    lab: KafkaClients, configs: dict[str, str]
) -> None:
    topic = await lab.topic(configs={"retention.ms": "1000000"})

    assert await _alter(lab, topic, configs) == INVALID_CONFIG
    assert await lab.topic_config(topic, "retention.ms") == "1000000"


async def test_settings_of_an_unknown_topic_are_an_error(lab: KafkaClients) -> None:
    name = unique("topic")

    assert await _alter(lab, name, {"retention.ms": "1"}) == UNKNOWN_TOPIC
    response = (await (await lab.admin()).describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)]))[0]
    assert response.resources[0][0] == UNKNOWN_TOPIC


async def test_asking_for_an_unknown_topic_says_so_and_makes_nothing(lab: KafkaClients) -> None:
    name = unique("topic")
    connection = await lab.connection()

    response = await connection.send(MetadataRequest([name]))

    assert [(topic[0], topic[1]) for topic in response.topics] == [(UNKNOWN_TOPIC, name)]
    assert name not in await (await lab.admin()).list_topics()


async def _set(lab: KafkaClients, topic: str, configs: dict[str, str]) -> int:
    """Change the settings in ``configs`` and no other settings of the topic, and return the error code."""
    connection = await lab.connection()
    answer = await connection.send(IncrementalAlterConfigs({topic: configs}))
    return answer.responses[0][0]


async def _alter(lab: KafkaClients, topic: str, configs: dict[str, str]) -> int:
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs)
    (response,) = await (await lab.admin()).alter_configs([resource])
    return response.resources[0][0]
