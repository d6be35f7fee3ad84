"""Read and change one setting of several topics.

This module defines Kafka's request IncrementalAlterConfigs, because aiokafka 0.14 has only AlterConfigs. AlterConfigs
resets every setting that the request does not name.
"""

from collections.abc import Iterable
from typing import Any, ClassVar, Final, NamedTuple

from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import IncompatibleBrokerVersion, NoError, for_code
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Array, Boolean, Int8, Int16, Int32, Schema, String

_TOPIC: Final = 2
_SET: Final = 0


class SettingRefusal(NamedTuple):
    topic: str
    why: str


async def read_setting(
    admin: Any, setting: str, topics: Iterable[str]
) -> tuple[dict[str, str | None], list[SettingRefusal]]:
    """Return the setting's value by topic, and a refusal for each topic for which the broker returns an error.

    Raises:
        KafkaError: The broker could not answer now.
    """
    resources = [ConfigResource(ConfigResourceType.TOPIC, topic, {setting: ""}) for topic in topics]
    values: dict[str, str | None] = {}
    refusals = []
    for answer in await admin.describe_configs(resources):
        for code, message, _, topic, entries in answer.resources:
            refusal = _refusal(setting, topic, code, message)
            if refusal is None:
                values[topic] = {name: value for name, value, *_ in entries}.get(setting)
            else:
                refusals.append(refusal)
    return values, refusals


async def alter_setting(admin: Any, setting: str, value: str, topics: Iterable[str]) -> list[SettingRefusal]:
    """Change ``setting`` of these topics to ``value``. Return a refusal for each topic that was not changed.

    Raises:
        KafkaError: The broker could not answer now.
    """
    request = IncrementalAlterConfigs({topic: {setting: value} for topic in topics})
    try:
        answer = await admin._send_request(request)  # noqa: SLF001
    except (IncompatibleBrokerVersion, NotImplementedError):
        return [SettingRefusal(topic, "Apache Kafka 2.3 or newer is needed for it") for topic in topics]
    refusals = (_refusal(setting, topic, code, message) for code, message, _, topic in answer.responses)
    return [refusal for refusal in refusals if refusal is not None]


def _refusal(setting: str, topic: str, code: int, message: str | None) -> SettingRefusal | None:
    error = for_code(code)
    if error is NoError:
        return None
    if getattr(error, "retriable", False):
        raise error(f"{setting} of {topic}: {message}")
    return SettingRefusal(topic, message or error.__name__)


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
    API_KEY: ClassVar = 44

    def __init__(self, settings: dict[str, dict[str, str]]) -> None:
        self._settings = settings

    def build(self, request_struct_class: type[_AlterV0]) -> _AlterV0:
        resources = [
            (_TOPIC, topic, [(name, _SET, value) for name, value in entries.items()])
            for topic, entries in self._settings.items()
        ]
        return request_struct_class(resources, False)  # noqa: FBT003 - false: apply, not only validate
