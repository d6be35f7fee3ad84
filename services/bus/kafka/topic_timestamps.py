"""Make topics of an older installation use the broker's time for their records (``LogAppendTime``).

aiokafka 0.14 has only AlterConfigs, which resets every setting that it does not name, even one that an operator changes
at the same moment. So this module defines IncrementalAlterConfigs.
"""

from collections.abc import Iterable
from typing import Any, ClassVar, Final, NamedTuple

from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import IncompatibleBrokerVersion, KafkaError, NoError, for_code
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Array, Boolean, Int8, Int16, Int32, Schema, String

from schemas.topics import TIMESTAMP_TYPE
from services.runtime.logging import logger

_log = logger("bus")

TIMESTAMP_SETTING: Final = "message.timestamp.type"

_TOPIC: Final = 2
_SET: Final = 0


class _Refusal(NamedTuple):
    topic: str
    why: str


async def use_log_append_time(admin: Any, bootstrap: str, topics: Iterable[str]) -> None:
    """Set ``LogAppendTime`` on topics whose records have their writers' times. Log one warning if the broker refuses.

    Args:
        admin: A started admin client.
        bootstrap: The brokers' addresses, for the command that the warning tells the operator to run.
        topics: Topics that exist.

    Raises:
        KafkaError: The broker could not answer now. The caller may try again.
    """
    others, refusals = await _with_create_time(admin, topics)
    if others:
        refusals += await _alter(admin, others)
    if refusals:
        _log.warning("%s", _complaint(refusals, bootstrap))


def _complaint(refusals: list[_Refusal], bootstrap: str) -> str:
    names = ", ".join(refusal.topic for refusal in refusals)
    return (
        f"records of {names} have their writers' times, and the broker does not let us change that"
        f" ({refusals[0].why}): deadlines are measured by the writers' clocks, and are wrong where those differ."
        f" For each of these topics: kafka-configs.sh --bootstrap-server {bootstrap} --alter --entity-type topics"
        f" --entity-name {refusals[0].topic} --add-config {TIMESTAMP_SETTING}={TIMESTAMP_TYPE}"
    )


async def _with_create_time(admin: Any, topics: Iterable[str]) -> tuple[list[str], list[_Refusal]]:
    """Return the topics whose timestamp type is not ``TIMESTAMP_TYPE``, and the broker's refusals to tell the type."""
    resources = [ConfigResource(ConfigResourceType.TOPIC, topic, {TIMESTAMP_SETTING: ""}) for topic in topics]
    others, refusals = [], []
    for answer in await admin.describe_configs(resources):
        for code, message, _, topic, entries in answer.resources:
            refusal = _refusal(topic, code, message)
            if refusal is not None:
                refusals.append(refusal)
            elif {name: value for name, value, *_ in entries}.get(TIMESTAMP_SETTING) != TIMESTAMP_TYPE:
                others.append(topic)
    return others, refusals


async def _alter(admin: Any, topics: list[str]) -> list[_Refusal]:
    """Set the timestamp type of these topics. Return the topics that could not be altered, with the reasons."""
    request = IncrementalAlterConfigs({topic: {TIMESTAMP_SETTING: TIMESTAMP_TYPE} for topic in topics})
    try:
        answer = await admin._send_request(request)  # noqa: SLF001
    except (IncompatibleBrokerVersion, NotImplementedError):
        return [_Refusal(topic, "Apache Kafka 2.3 or newer is needed for it") for topic in topics]
    refusals = (_refusal(topic, code, message) for code, message, _, topic in answer.responses)
    return [refusal for refusal in refusals if refusal is not None]


def _refusal(topic: str, code: int, message: str | None) -> _Refusal | None:
    error: type[KafkaError] = for_code(code)
    if error is NoError:
        return None
    if getattr(error, "retriable", False):
        raise error(f"{TIMESTAMP_SETTING} of {topic}: {message}")
    return _Refusal(topic, message or error.__name__)


class _AlteredV0(Response):  # type: ignore[misc]
    API_KEY = 44
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "responses",
            Array(
                ("error_code", Int16),
                ("error_message", String("utf-8")),
                ("resource_type", Int8),
                ("resource_name", String("utf-8")),
            ),
        ),
    )


class _AlterV0(RequestStruct):  # type: ignore[misc]
    API_KEY = 44
    API_VERSION = 0
    RESPONSE_TYPE = _AlteredV0
    SCHEMA = Schema(
        (
            "resources",
            Array(
                ("resource_type", Int8),
                ("resource_name", String("utf-8")),
                ("configs", Array(("name", String("utf-8")), ("config_operation", Int8), ("value", String("utf-8")))),
            ),
        ),
        ("validate_only", Boolean),
    )


class IncrementalAlterConfigs(Request[_AlterV0]):  # type: ignore[misc]
    """Kafka's IncrementalAlterConfigs request, version 0. It changes the given settings of each topic and no others."""

    API_KEY: ClassVar = 44

    def __init__(self, settings: dict[str, dict[str, str]]) -> None:
        self._settings = settings

    def build(self, request_struct_class: type[_AlterV0]) -> _AlterV0:
        resources = [
            (_TOPIC, topic, [(name, _SET, value) for name, value in entries.items()])
            for topic, entries in self._settings.items()
        ]
        return request_struct_class(resources, False)  # noqa: FBT003 - false: apply, not only validate
