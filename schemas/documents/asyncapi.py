"""Generate the AsyncAPI 3 document. It describes how other programs can read and write the topics."""

from collections.abc import Iterator
from typing import Final

from schemas.documents.json_schemas import JsonObject, attribute_descriptions, file_name, summary
from schemas.registry import KINDS, ROLES, Kind, RoleName, kinds_on, reads, writes
from schemas.topics import DEFAULT_PARTITIONS, TIMESTAMP_TYPE, TOPICS, Topic
from schemas.trace import TRACEPARENT_PATTERN
from schemas.wire import KIND_HEADER, MAX_EVENT_BYTES, TRACE_HEADER, VERSION_HEADER

BINDING_VERSION: Final = "0.5.0"

_DESCRIPTION: Final = (
    "A request event is answered by events on the stream log. A record's value is one JSON object, its headers name"
    " the event's kind and version, its key is the request id (UUIDv7, lower case), and its partition is Kafka's"
    " murmur2 hash of the key, so that all events about one request are in one partition, in one order. Every"
    " topic whose key is the request id has the same number of partitions. The topics with another key have one"
    " partition: the key of a ledger window is the tenant, that of an event about a batch job is the batch id, and a"
    f" dead letter has no key. Values are at most {MAX_EVENT_BYTES:,} bytes. Readers skip kinds they do not know,"
    " versions above their own, and fields they do not know."
)


def document() -> JsonObject:
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
                "description": "The broker of `railbus up`, or any Apache Kafka. `railbus up` prints its port.",
            }
        },
        "channels": {topic.name: _channel(topic) for topic in TOPICS},
        "operations": dict(_operations()),
        "components": {"messages": {name: _message(kind) for name, kind in KINDS.items()}},
    }


def _channel(topic: Topic) -> JsonObject:
    return {
        "address": topic.name,
        "description": topic.about,
        "messages": {kind.name: {"$ref": f"#/components/messages/{kind.name}"} for kind in kinds_on(topic)},
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


def _operations() -> Iterator[tuple[str, JsonObject]]:
    for role in ROLES:
        for action, by_topic in (("send", writes(role)), ("receive", reads(role))):
            for topic in TOPICS:
                kinds = [kind.name for kind in kinds_on(topic) if kind.cls in by_topic.get(topic.name, ())]
                if kinds:
                    yield f"{role}.{action}.{topic.name}", _operation(role, action, topic, kinds)


def _operation(role: RoleName, action: str, topic: Topic, kinds: list[str]) -> JsonObject:
    channel = f"#/channels/{topic.name}"
    operation: JsonObject = {
        "action": action,
        "channel": {"$ref": channel},
        "summary": f"{role} {'writes' if action == 'send' else 'reads'} {', '.join(kinds)}.",
        "messages": [{"$ref": f"{channel}/messages/{kind}"} for kind in kinds],
    }
    if role == "app" and action == "send":
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
    descriptions = {
        "request_id": "The request id, as in the value.",
        "tenant": "The tenant, as in the value.",
        "batch_id": "The batch id, as in the value.",
    }
    return {"type": "string", "description": descriptions[kind.key]} if kind.key in descriptions else None
