"""The protocol's requests that are served, each with its versions, and the way from a frame to its handler.

Kafka has no common place for an error in an answer whose version it does not know, so it closes the connection, and so
do we; ApiVersions, from which clients learn what is served, is the one exception. The flexible versions (KIP-482) are
not offered.
"""

import struct
from collections.abc import Callable
from typing import NamedTuple

from services.broker.codes import Code
from services.broker.config_api import alter_configs, describe_configs, incremental_alter_configs
from services.broker.core import Broker
from services.broker.fetch import fetch
from services.broker.group_admin import delete_groups, describe_groups, list_groups
from services.broker.group_api import heartbeat, join_group, leave_group, sync_group
from services.broker.list_offsets import list_offsets
from services.broker.metadata import find_coordinator, init_producer_id, metadata
from services.broker.offset_api import offset_commit, offset_fetch
from services.broker.produce import produce
from services.broker.request import Answered, CloseConnection, Request
from services.broker.topic_api import create_partitions, create_topics, delete_topics
from services.broker.wire import Reader, Writer

API_VERSIONS = 18
_HEADER = struct.Struct(">hhi")


class Api(NamedTuple):
    """A kind of request."""

    name: str
    least: int
    most: int
    handle: Callable[[Request], Answered]


def api_versions(request: Request) -> Answered:
    """What is served."""
    return _api_versions(request.version, Code.NONE, APIS)


def _api_versions(version: int, code: Code, apis: dict[int, Api]) -> bytes:
    out = Writer().i16(code)
    out.array(apis.items(), lambda item: out.i16(item[0]).i16(item[1].least).i16(item[1].most))
    if version >= 1:
        out.i32(0)
    return out.done()


APIS = {
    0: Api("Produce", 3, 7, produce),
    1: Api("Fetch", 4, 11, fetch),
    2: Api("ListOffsets", 1, 5, list_offsets),
    3: Api("Metadata", 0, 8, metadata),
    8: Api("OffsetCommit", 2, 7, offset_commit),
    9: Api("OffsetFetch", 1, 5, offset_fetch),
    10: Api("FindCoordinator", 0, 2, find_coordinator),
    11: Api("JoinGroup", 2, 5, join_group),
    12: Api("Heartbeat", 0, 3, heartbeat),
    13: Api("LeaveGroup", 0, 3, leave_group),
    14: Api("SyncGroup", 1, 3, sync_group),
    15: Api("DescribeGroups", 0, 4, describe_groups),
    16: Api("ListGroups", 0, 2, list_groups),
    API_VERSIONS: Api("ApiVersions", 0, 2, api_versions),
    19: Api("CreateTopics", 0, 4, create_topics),
    20: Api("DeleteTopics", 0, 3, delete_topics),
    22: Api("InitProducerId", 0, 1, init_producer_id),
    32: Api("DescribeConfigs", 0, 2, describe_configs),
    33: Api("AlterConfigs", 0, 1, alter_configs),
    37: Api("CreatePartitions", 0, 1, create_partitions),
    42: Api("DeleteGroups", 0, 1, delete_groups),
    44: Api("IncrementalAlterConfigs", 0, 0, incremental_alter_configs),
}


def serve(broker: Broker, frame: bytes, host: str) -> Answered:
    """Answer one request; raises `Malformed` or `CloseConnection` where the protocol knows no answer."""
    key, version, _correlation = _HEADER.unpack_from(frame)
    api = APIS.get(key)
    if api is None:
        raise CloseConnection(f"request {key} is not served by the embedded broker")
    if not api.least <= version <= api.most:
        if key == API_VERSIONS:  # a newer client: told in the oldest form which versions of this one it may use
            return _api_versions(0, Code.UNSUPPORTED_VERSION, {key: api})
        raise CloseConnection(f"{api.name} version {version} is not served: {api.least} to {api.most} are")
    body = Reader(frame, _HEADER.size)
    client_id = body.nullable_string() or ""
    return api.handle(Request(broker, key, version, client_id, host, body))
