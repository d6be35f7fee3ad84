from types import SimpleNamespace

from schemas.topics import STREAMS
from services.bus import BusSettings
from services.cli.client import log_client
from services.cli.client.chat_request import ChatRequest


async def test_the_answer_is_awaited_in_the_partitions_that_the_broker_has(monkeypatch):
    used = []

    class Follower:
        request_error = None

        def __init__(self, _, settings):
            used.append(settings.partitions)
            self.reader = SimpleNamespace(run=self.done)

        async def done(self, *_):
            pass

        begin = fold = done

    async def counts(_):
        return {STREAMS.name: 8}

    async def send(_, __, settings):
        used.append(settings.partitions)

    monkeypatch.setattr(log_client, "partition_counts", counts)
    monkeypatch.setattr(log_client, "_AnswerFollower", Follower)
    monkeypatch.setattr(log_client, "_send_request", send)
    await log_client.ask_log(ChatRequest(prompt="hi"), BusSettings(partitions=4), lambda _: None)
    assert used == [8, 8]
