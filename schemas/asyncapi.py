"""The AsyncAPI 3 document: what another program needs to know to read and write the topics."""

from typing import Any, Final

from schemas.json_schemas import attribute_descriptions, file_name, summary
from schemas.roles import ROLES, Role
from schemas.topics import DEFAULT_PARTITIONS, TIMESTAMP_TYPE, TOPICS, Topic
from schemas.trace import TRACEPARENT_PATTERN
from schemas.wire import KIND_HEADER, KINDS, MAX_EVENT_BYTES, TRACE_HEADER, VERSION_HEADER, Kind

JsonObject = dict[str, Any]

BINDING_VERSION: Final = "0.5.0"

_DESCRIPTION: Final = (
    "A request event is answered by events on the stream log. A record's value is one JSON object, its headers name"
    " the event's kind and version, its key is the request id (UUIDv7, lower case), and its partition is Kafka's"
    " murmur2 hash of the key, so that all that is said about one request stands in one partition, in one order. Every"
    " topic whose key is the request id has the same number of partitions. Values are at most"
    f" {MAX_EVENT_BYTES:,} bytes. Readers skip kinds they do not know, versions above their own, and fields they do"
    " not know."
)


def document() -> JsonObject:
    """The whole AsyncAPI document; payloads refer to the JSON Schemas beside it."""
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Railbus",
            "version": "1",
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "servers": {
            "local": {
                "host": "127.0.0.1:9092",
                "protocol": "kafka",
                "description": "The broker of `railbus up`, or any Apache Kafka. `railbus up` says which port it took.",
            }
        },
        "channels": {topic.name: _channel(topic) for topic in TOPICS},
        "operations": {_operation_id(role): _operation(role) for role in ROLES},
        "components": {"messages": {name: _message(kind) for name, kind in KINDS.items()}},
    }


def _channel(topic: Topic) -> JsonObject:
    return {
        "address": topic.name,
        "description": topic.about,
        "messages": {kind: {"$ref": f"#/components/messages/{kind}"} for kind in topic.kinds},
        "bindings": {
            "kafka": {
                "topic": topic.name,
                "partitions": topic.partitions(DEFAULT_PARTITIONS),
                "topicConfiguration": {
                    "cleanup.policy": ["delete"],
                    "retention.ms": topic.retention_ms,
                    "message.timestamp.type": TIMESTAMP_TYPE,
                },
                "bindingVersion": BINDING_VERSION,
            }
        },
    }


def _operation_id(role: Role) -> str:
    return f"{role.who}.{role.does}.{role.topic.name}"


def _operation(role: Role) -> JsonObject:
    channel = f"#/channels/{role.topic.name}"
    operation: JsonObject = {
        "action": role.does,
        "channel": {"$ref": channel},
        "summary": f"{role.who} {'writes' if role.does == 'send' else 'reads'} {', '.join(role.kinds)}.",
        "messages": [{"$ref": f"{channel}/messages/{kind}"} for kind in role.kinds],
    }
    if role.who == "app" and role.does == "send":
        operation["reply"] = {"channel": {"$ref": "#/channels/railbus.streams"}}
    return operation


def _message(kind: Kind) -> JsonObject:
    key = _key(kind)
    message: JsonObject = {
        "name": kind.name,
        "title": kind.name,
        "summary": summary(kind.cls),
        "contentType": "application/json",
        "headers": _headers(kind),
        "payload": {"$ref": f"./{file_name(kind.name)}"},
        "bindings": {"kafka": {**({"key": key} if key else {}), "bindingVersion": BINDING_VERSION}},
    }
    if "request_id" in attribute_descriptions(kind.cls):
        message["correlationId"] = {"location": "$message.payload#/request_id"}
    return message


def _headers(kind: Kind) -> JsonObject:
    return {
        "type": "object",
        "required": [KIND_HEADER, VERSION_HEADER],
        "properties": {
            KIND_HEADER: {"type": "string", "const": kind.name},
            VERSION_HEADER: {"type": "string", "const": str(kind.version)},
            TRACE_HEADER: {
                "type": "string",
                "pattern": TRACEPARENT_PATTERN,
                "description": "W3C Trace Context; optional.",
            },
        },
    }


def _key(kind: Kind) -> JsonObject | None:
    keys = {topic.key for topic in TOPICS if kind.name in topic.kinds}
    descriptions = {"request_id": "The request id, as in the value.", "tenant": "The tenant, as in the value."}
    (key,) = keys
    return {"type": "string", "description": descriptions[key]} if key in descriptions else None
