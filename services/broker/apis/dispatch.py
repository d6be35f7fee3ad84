"""Pass each request of the Kafka protocol to its handler. `APIS` lists the supported requests."""

import struct
from collections.abc import Callable
from typing import NamedTuple

from services.broker.apis.configs import alter_configs, describe_configs, incremental_alter_configs
from services.broker.apis.fetch import fetch
from services.broker.apis.group_admin import delete_groups, describe_groups, list_groups
from services.broker.apis.groups import heartbeat, join_group, leave_group, sync_group
from services.broker.apis.list_offsets import list_offsets
from services.broker.apis.metadata import find_coordinator, init_producer_id, metadata
from services.broker.apis.offsets import offset_commit, offset_fetch
from services.broker.apis.produce import produce
from services.broker.apis.topics import create_partitions, create_topics, delete_topics
from services.broker.protocol.error_codes import ErrorCode
from services.broker.protocol.responses import ApiResponse, CloseConnection
from services.broker.protocol.wire import Reader, Writer
from services.broker.state import ApiRequest, BrokerState

API_VERSIONS = 18
_HEADER = struct.Struct(">hhi")


class Api(NamedTuple):
    name: str
    min_version: int
    max_version: int
    handle: Callable[[ApiRequest], ApiResponse]


def api_versions(request: ApiRequest) -> ApiResponse:
    return _api_versions(request.version, ErrorCode.NONE, APIS)


def _api_versions(version: int, code: ErrorCode, apis: dict[int, Api]) -> bytes:
    out = Writer().i16(code)
    out.array(apis.items(), lambda item: out.i16(item[0]).i16(item[1].min_version).i16(item[1].max_version))
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


def handle_frame(broker: BrokerState, frame: bytes, host: str) -> ApiResponse:
    """Pass a request to its handler, and return the response.

    `frame` is the request without its length prefix. `host` is the IP address of the client.

    Raises:
        MalformedRequest: The request cannot be decoded.
        CloseConnection: The broker does not support the request or its version.
    """
    key, version, _correlation = _HEADER.unpack_from(frame)
    api = APIS.get(key)
    if api is None:
        raise CloseConnection(f"request {key} is not supported by the embedded broker")
    if not api.min_version <= version <= api.max_version:
        if key == API_VERSIONS:  # a newer client: version 0 of the response lists the supported versions
            return _api_versions(0, ErrorCode.UNSUPPORTED_VERSION, {key: api})
        # As in Kafka, there is no response: the broker cannot write one in a version that it does not support.
        raise CloseConnection(
            f"{api.name} version {version} is not supported: {api.min_version} to {api.max_version} are"
        )
    body = Reader(frame, _HEADER.size)
    client_id = body.nullable_string() or ""
    return api.handle(ApiRequest(broker, key, version, client_id, host, body))
