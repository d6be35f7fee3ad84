"""Test how a safety process ends: after a refused recall, and if its policy cannot be used."""

import asyncio

import pytest
from aiokafka.errors import TopicAuthorizationFailedError

from schemas.stream import Cleared, Recall
from schemas.topics import STREAMS
from services.bus import BusSettings
from services.bus.write import producer as producer_module
from services.policy import BrokenPolicy, PolicyFault
from services.processor import Write
from services.runtime import UserError
from services.runtime.errors import UnavailableError
from services.runtime.task_groups import leaf_errors
from services.safety import __main__ as safety_main
from services.safety.service import SafetyService
from services.safety.settings import Settings
from tests.support.waiting import until
from tests.unit.safety.test_versions import Check
from tests.unit.safety.world import RunWriter, policy


class Batch:
    def __init__(self):
        self.count = 0

    def append(self, **_):
        self.count += 1

    def record_count(self):
        return self.count


class Client:
    """A simulated client of aiokafka. The test answers the batches in ``sent``."""

    def __init__(self):
        self.sent = []
        self.opened = self.closed = False

    def create_batch(self):
        return Batch()

    async def send_batch(self, batch, topic, *, partition):
        self.sent.append(asyncio.get_running_loop().create_future())
        return self.sent[-1]


async def build_check(_):
    return Check()


async def test_after_a_refused_recall_nothing_is_written_and_the_process_ends(monkeypatch):
    client = Client()

    async def open_client(*_):
        client.opened = True
        return client

    async def close_client(_):
        client.closed = True

    monkeypatch.setattr(producer_module, "open_producer", open_client)
    monkeypatch.setattr(producer_module, "close_producer", close_client)
    service = SafetyService(Settings(), BusSettings(), {1: build_check, 2: build_check}, lambda: None)
    processor = service._processor
    monkeypatch.setattr(processor._pending_writes, "_holds", lambda _: True)

    async def run():
        await processor._producer.start()
        try:
            await processor._pending_writes.send()
        finally:
            await processor._producer.stop()

    monkeypatch.setattr(processor, "run", run)
    head = {**RunWriter().voice, "policy_version": "v"}
    recall = Recall(**head, recall_id="1", start=0, end=9, action="stop", rule="r", category="c")
    running = asyncio.create_task(service.run())
    await until(lambda: client.opened)
    processor.perform_all([Write(STREAMS, recall)])
    await until(lambda: client.sent)
    processor.perform_all([Write(STREAMS, Cleared(**head, seq=3, final=True))])  # the batch after the recall
    client.sent[0].set_exception(TopicAuthorizationFailedError())
    with pytest.raises(ExceptionGroup) as ended:
        async with asyncio.timeout(20):
            await running
    assert [type(error) for error in leaf_errors(ended.value)] == [UnavailableError]
    assert "a recall could not be written" in str(leaf_errors(ended.value)[0])
    assert len(client.sent) == 1
    assert client.closed


async def test_checks_are_closed_if_another_check_cannot_be_built():
    made = []

    async def first(_):
        made.append(Check())
        return made[-1]

    async def second(_):
        raise BrokenPolicy([PolicyFault("policy.toml", 1, "classifier 'horoscope' is unknown")])

    service = SafetyService(Settings(), BusSettings(), {1: first, 2: second}, lambda: None)
    with pytest.raises(BrokenPolicy):
        await service._prepare(policy(classifiers='["horoscope"]'))
    assert [check.closed for check in made] == [True]
    assert service._checks == {}


@pytest.mark.parametrize(
    ("temporary", "forbidden", "kind"),
    [(True, False, UnavailableError), (True, True, UserError), (False, False, UserError)],
)
async def test_only_what_the_user_must_correct_is_a_mistake_of_the_user(temporary, forbidden, kind, monkeypatch):
    def refuse(*_):
        raise BrokenPolicy([PolicyFault(".", 0, "no memory")], temporary=temporary, forbidden=forbidden)

    monkeypatch.setattr(safety_main, "SafetyService", refuse)
    with pytest.raises(kind, match=r"RAILBUS_POLICY=.*: \.:0: no memory"):
        await safety_main.main()
