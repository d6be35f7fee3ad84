"""Test committed offsets: the broker keeps them when all members have left, and refuses commits of zombies."""

import pytest
from aiokafka import TopicPartition
from aiokafka.protocol.commit import OffsetCommitRequest
from aiokafka.structs import OffsetAndMetadata

from tests.contract.lab import KafkaClients, read_records, unique
from tests.support.waiting import until

UNKNOWN_TOPIC_OR_PARTITION = 3
ILLEGAL_GENERATION = 22
UNKNOWN_MEMBER_ID = 25


async def _commit(
    lab: KafkaClients, group: str, generation: int, member_id: str, topic: str, offset: int, partition: int = 0
) -> int:
    """Send an offset commit with the given generation and member id, and return the error code."""
    request = OffsetCommitRequest(group, generation, member_id, -1, [(topic, [(partition, offset, "")])])
    response = await (await lab.connection()).send(request)
    ((_, ((_, error),)),) = response.topics
    return error


async def test_what_was_never_committed_is_none(lab: KafkaClients) -> None:
    topic = await lab.topic()
    consumer = await lab.consumer(group_id=unique("group"))

    assert await consumer.committed(TopicPartition(topic, 0)) is None


async def test_a_group_goes_on_where_it_committed(lab: KafkaClients) -> None:
    topic, group = await lab.topic(), unique("group")
    await lab.put(topic, [b"1", b"2", b"3"])
    first = await lab.consumer(topic, group_id=group)
    records = await read_records(first, 2)
    await first.commit({TopicPartition(topic, 0): records[-1].offset + 1})
    await first.stop()

    second = await lab.consumer(topic, group_id=group)

    assert [record.value for record in await read_records(second, 1)] == [b"3"]
    assert await second.committed(TopicPartition(topic, 0)) == 2


async def test_a_consumer_without_membership_commits_too(lab: KafkaClients) -> None:
    topic, group = await lab.topic(partitions=2), unique("group")
    partitions = [TopicPartition(topic, p) for p in range(2)]
    await lab.put(topic, [b"1", b"2"])
    first = await lab.consumer(group_id=group)
    first.assign(partitions)
    await read_records(first, 2)
    await first.commit()
    await first.stop()

    second = await lab.consumer(group_id=group)
    second.assign(partitions)

    assert await second.committed(partitions[0]) == 2
    assert await second.position(partitions[0]) == 2


async def test_commits_keep_their_note_and_the_last_one_counts(lab: KafkaClients) -> None:
    topic, group = await lab.topic(partitions=2), unique("group")
    consumer = await lab.consumer(group_id=group)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    consumer.assign([zero, one])

    await consumer.commit({zero: OffsetAndMetadata(5, "first"), one: OffsetAndMetadata(7, "")})
    await consumer.commit({zero: OffsetAndMetadata(3, "went back, ünïcode")})

    offsets = await (await lab.admin()).list_consumer_group_offsets(group)
    assert offsets == {zero: OffsetAndMetadata(3, "went back, ünïcode"), one: OffsetAndMetadata(7, "")}


async def test_groups_have_their_own_offsets(lab: KafkaClients) -> None:
    topic = await lab.topic()
    partition = TopicPartition(topic, 0)
    groups = [unique("group") for _ in range(3)]
    for number, group in enumerate(groups):
        assert await _commit(lab, group, -1, "", topic, number) == 0

    for number, group in enumerate(groups):
        assert await (await lab.consumer(group_id=group)).committed(partition) == number


async def test_offsets_stay_when_all_members_have_left(lab: KafkaClients) -> None:
    topic, group = await lab.topic(partitions=2), unique("group")
    await lab.put(topic, [b"1", b"2"])
    member = await lab.consumer(topic, group_id=group)
    await read_records(member, 2)
    await member.commit()
    await member.stop()
    admin = await lab.admin()

    async def is_empty() -> bool:
        (response,) = await admin.describe_consumer_groups([group])
        return response.groups[0][2] == "Empty"

    await until(is_empty, "the group is empty")
    offsets = await admin.list_consumer_group_offsets(group)
    assert offsets[TopicPartition(topic, 0)].offset == 2


async def test_a_zombie_cannot_commit(lab: KafkaClients) -> None:
    topic, group = await lab.topic(), unique("group")
    member = await lab.consumer(topic, group_id=group)
    await until(member.assignment, "the member has joined")
    generation, member_id = member._coordinator.generation, member._coordinator.member_id

    assert await _commit(lab, group, generation, member_id, topic, 10) == 0
    assert await _commit(lab, group, generation - 1, member_id, topic, 20) == ILLEGAL_GENERATION
    assert await _commit(lab, group, generation, "stranger", topic, 30) == UNKNOWN_MEMBER_ID
    # While a group has members, one who is no member may not commit for it either.
    assert await _commit(lab, group, -1, "", topic, 40) == UNKNOWN_MEMBER_ID
    assert await member.committed(TopicPartition(topic, 0)) == 10


async def test_a_commit_for_an_unknown_topic_is_refused(lab: KafkaClients) -> None:
    assert await _commit(lab, unique("group"), -1, "", "never-created", 1) == UNKNOWN_TOPIC_OR_PARTITION


async def test_automatic_commits_arrive_when_a_member_stops(lab: KafkaClients) -> None:
    topic, group = await lab.topic(), unique("group")
    await lab.put(topic, [b"1", b"2", b"3"])
    member = await lab.consumer(topic, group_id=group, enable_auto_commit=True, auto_commit_interval_ms=60_000)
    await read_records(member, 3)
    await member.stop()

    assert await (await lab.consumer(group_id=group)).committed(TopicPartition(topic, 0)) == 3


@pytest.mark.parametrize("members", [1, 2])
async def test_groups_can_be_listed_and_described(lab: KafkaClients, members: int) -> None:
    topic, group = await lab.topic(partitions=2), unique("group")
    joined = [await lab.consumer(topic, group_id=group, client_id=f"client-{n}") for n in range(members)]
    admin = await lab.admin()

    async def described() -> tuple[str, ...]:
        (response,) = await admin.describe_consumer_groups([group])
        return response.groups[0]

    async def is_stable() -> bool:
        return (await described())[2] == "Stable" and len((await described())[5]) == members

    await until(is_stable, "the group is stable with its members")
    error, name, _, protocol_type, protocol, who, *_ = await described()
    assert (error, name, protocol_type, protocol) == (0, group, "consumer", "roundrobin")
    assert {member[0] for member in who} == {consumer._coordinator.member_id for consumer in joined}
    assert (group, "consumer") in [listed[:2] for listed in await admin.list_consumer_groups()]


async def test_a_group_that_never_was_is_dead(lab: KafkaClients) -> None:
    (response,) = await (await lab.admin()).describe_consumer_groups([unique("group")])

    assert response.groups[0][2] == "Dead"
