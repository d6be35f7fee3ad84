"""Test that the broker serves each request in every version that it advertises, because clients choose the version."""

import asyncio
import io
import struct
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka.protocol import admin, commit, coordination, fetch, group, metadata, offset, produce, transaction
from aiokafka.protocol.api import Request, RequestStruct

from tests.contract import wire
from tests.contract.lab import PATIENCE_S, KafkaClients, unique

PRODUCE = 0
# Apache Kafka 4 advertises versions 0-2, too, because an old client fails without them, but it does not serve them.
SERVED_PRODUCE = 3
# aiokafka's schema lacks the last field of a group, the allowed operations. This is its value if nobody asks for them.
UNREAD = {admin.DescribeGroupsRequest_v3: struct.pack(">i", -(2**31))}

UNKNOWN_TOPIC = 3
UNKNOWN_MEMBER_ID = 25

# The request for a topic and a name, a function that finds the error code in the decoded response, and the right code.
Case = tuple[Callable[[str, str], Request[Any]], Callable[[Any], int], int]


def _top(response: Any) -> int:
    return response.error_code


CASES: dict[str, Case] = {
    "produce": (
        lambda topic, _: produce.ProduceRequest(None, -1, 5000, [(topic, [(0, wire.batch([b"v"]))])]),
        lambda response: response.topics[0][1][0][1],
        0,
    ),
    "fetch": (
        lambda topic, _: fetch.FetchRequest(0, 1, 10_000, 0, [(topic, [(0, 0, 10_000)])]),
        lambda response: response.topics[0][1][0][1],
        0,
    ),
    "list offsets": (
        lambda topic, _: offset.OffsetRequest(-1, 0, [(topic, [(0, -1)])]),
        lambda response: response.topics[0][1][0][1],
        0,
    ),
    "metadata": (lambda topic, _: metadata.MetadataRequest([topic]), lambda response: response.topics[0][0], 0),
    "commit offsets": (
        lambda topic, name: commit.OffsetCommitRequest(name, -1, "", -1, [(topic, [(0, 1, "note")])]),
        lambda response: response.topics[0][1][0][1],
        0,
    ),
    "fetch offsets": (
        lambda topic, name: commit.OffsetFetchRequest(name, [(topic, [0])]),
        lambda response: response.topics[0][1][0][3],
        0,
    ),
    "find coordinator": (lambda _, name: coordination.FindCoordinatorRequest(name, 0), _top, 0),
    "heartbeat": (lambda _, name: group.HeartbeatRequest(name, 1, "stranger"), _top, UNKNOWN_MEMBER_ID),
    "leave group": (lambda _, name: group.LeaveGroupRequest(name, "stranger"), _top, UNKNOWN_MEMBER_ID),
    "sync group": (
        lambda _, name: group.SyncGroupRequest(name, 1, "stranger", None, []),
        _top,
        UNKNOWN_MEMBER_ID,
    ),
    "join group": (
        lambda _, name: group.JoinGroupRequest(name, 2000, 2000, "stranger", None, "consumer", [("range", b"")]),
        _top,
        UNKNOWN_MEMBER_ID,
    ),
    "describe groups": (
        lambda _, name: admin.DescribeGroupsRequest([name]),
        lambda response: response.groups[0][0],
        0,
    ),
    "list groups": (lambda _, __: admin.ListGroupsRequest(), _top, 0),
    "api versions": (lambda _, __: admin.ApiVersionRequest(), _top, 0),
    "delete topics": (
        lambda _, name: admin.DeleteTopicsRequest([name], 5000),
        lambda response: response.topic_error_codes[0][1],
        UNKNOWN_TOPIC,
    ),
    "create topics": (
        lambda _, name: admin.CreateTopicsRequest([(name, 1, 1, [], [])], 5000, validate_only=False),
        lambda response: response.topic_errors[0][1],
        0,
    ),
    "create partitions": (
        lambda topic, _: admin.CreatePartitionsRequest([(topic, (3, None))], 5000, validate_only=True),
        lambda response: response.topic_errors[0][1],
        0,
    ),
    "describe configs": (
        lambda topic, _: admin.DescribeConfigsRequest([(2, topic, None)]),
        lambda response: response.resources[0][0],
        0,
    ),
    "alter configs": (
        lambda topic, _: admin.AlterConfigsRequest([(2, topic, [("retention.ms", "1000")])]),
        lambda response: response.resources[0][0],
        0,
    ),
    "init producer id": (lambda _, __: transaction.InitProducerIdRequest(None, 0), _top, 0),
}


def _versions(request: Request[Any], spoken: dict[int, tuple[int, int]]) -> list[type[RequestStruct]]:
    """Return the versions of a request that aiokafka and the broker both know, oldest first.

    ``spoken`` maps the API key of each request to the oldest and the newest version that the broker knows.
    """
    least, most = spoken[request.API_KEY]
    return [known for known in request._CLASSES if least <= known.API_VERSION <= most]


async def _ask(lab: KafkaClients, struct_class: type[RequestStruct], request: Request[Any]) -> tuple[Any, bytes]:
    """Send the request in the version of ``struct_class``. Return the decoded response and all bytes left over."""
    body = request.build(struct_class)
    message = body.build_request_header(7, "contract").encode() + body.encode()
    host, port = lab.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(struct.pack(">i", len(message)) + message)
        async with asyncio.timeout(PATIENCE_S):
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            answer = io.BytesIO(await reader.readexactly(size))
    finally:
        writer.close()
    assert body.parse_response_header(answer).correlation_id == 7
    return body.RESPONSE_TYPE.decode(answer), answer.read()


@pytest.mark.parametrize("what", CASES)
async def test_each_version_is_answered_in_its_own_format(lab: KafkaClients, what: str) -> None:
    build, error_of, expected = CASES[what]
    topic, connection = await lab.topic(), await lab.connection()
    await wire.producer_id(connection)  # waits until a broker that is just up has some
    spoken = {**connection._versions, PRODUCE: (SERVED_PRODUCE, connection._versions[PRODUCE][1])}
    known = _versions(build(topic, "any"), spoken)
    assert known

    for struct_class in known:
        request = build(topic, unique("name"))
        response, rest = await _ask(lab, struct_class, request)
        assert error_of(response) == expected, f"{what} v{struct_class.API_VERSION}: {response}"
        assert rest == UNREAD.get(struct_class, b""), (
            f"{what} v{struct_class.API_VERSION} has {len(rest)} bytes too many"
        )
