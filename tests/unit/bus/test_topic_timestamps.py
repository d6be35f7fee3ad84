"""Test how topics are set to ``LogAppendTime``.

The tests include a broker that refuses, one that is too old, and one that fails temporarily.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import (
    IncompatibleBrokerVersion,
    KafkaError,
    NotControllerError,
    PolicyViolationError,
    TopicAuthorizationFailedError,
)

from services.bus.kafka.topics import use_log_append_time

DENIED = TopicAuthorizationFailedError.errno


class Admin:
    """A simulated admin client of aiokafka that records the requests to alter topics.

    ``describe_configs`` responds with the error code ``seen``. A request to alter topics gets a response with the error
    code ``altered``. If ``altered`` is an exception, the request raises this exception.
    """

    def __init__(self, types: dict[str, str], *, seen: int = 0, altered: int | Exception = 0) -> None:
        self.types = types
        self._seen = seen
        self._altered = altered
        self.asked: list[Any] = []

    async def describe_configs(self, resources: Sequence[Any]) -> list[Any]:
        described = [
            (self._seen, None, 2, resource.name, [("message.timestamp.type", self.types[resource.name], False, 5)])
            for resource in resources
        ]
        return [SimpleNamespace(resources=described)]

    async def _send_request(self, request: Any) -> Any:
        struct = request.prepare({44: (0, 1)})
        self.asked.append(struct)
        if isinstance(self._altered, Exception):
            raise self._altered
        return SimpleNamespace(responses=[(self._altered, None, 2, topic) for _, topic, _ in struct.resources])


async def take(admin: Admin) -> None:
    await use_log_append_time(admin, "kafka:9092", admin.types)


async def test_only_the_topics_that_need_it_are_altered(caplog: pytest.LogCaptureFixture) -> None:
    admin = Admin({"old": "CreateTime", "new": "LogAppendTime"})
    await take(admin)
    (struct,) = admin.asked
    assert struct.resources == [(2, "old", [("message.timestamp.type", 0, "LogAppendTime")])]
    assert struct.validate_only is False
    assert not caplog.messages


async def test_nothing_is_altered_where_nothing_needs_it() -> None:
    admin = Admin({"new": "LogAppendTime"})
    await take(admin)
    assert not admin.asked


@pytest.mark.parametrize(
    "refusal",
    [{"altered": DENIED}, {"altered": PolicyViolationError.errno}, {"seen": DENIED},
     {"altered": IncompatibleBrokerVersion("old")}],
)  # fmt: skip
async def test_a_broker_that_does_not_let_us_is_said_once_with_the_remedy(
    caplog: pytest.LogCaptureFixture, refusal: dict[str, Any]
) -> None:
    await take(Admin({"a": "CreateTime", "b": "CreateTime"}, **refusal))
    (line,) = caplog.messages
    assert "records of a, b have their writers' times" in line
    assert "deadlines are measured by the writers' clocks" in line
    assert "--bootstrap-server kafka:9092" in line
    assert "--add-config message.timestamp.type=LogAppendTime" in line


@pytest.mark.parametrize("trouble", [{"altered": NotControllerError.errno}, {"seen": NotControllerError.errno}])
async def test_a_broker_that_cannot_just_now_is_asked_again(
    caplog: pytest.LogCaptureFixture, trouble: dict[str, int]
) -> None:
    with pytest.raises(KafkaError):
        await take(Admin({"a": "CreateTime"}, **trouble))
    assert not caplog.messages
