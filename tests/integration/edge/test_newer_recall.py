"""Test that an edge shows no more text of an answer after a recall in a newer format, which the edge cannot read."""

import orjson
import pytest
from aiokafka import AIOKafkaProducer

from schemas.topics import STREAMS
from schemas.wire import encode
from services.bus import partition_for
from tests.integration.edge.lab import ASK, PARTITIONS


async def write_as_newer(lab, event, after=()):
    """Write an event to the stream log as a future version of Railbus would write it.

    The record batch first has the events in ``after``, in today's format, and then this event. An edge gets the whole
    batch at once.
    """
    value, headers = encode(event)
    body = orjson.loads(value) | {"from_the_future": True}
    newer = [(name, b"99" if name == "v" else content) for name, content in headers]
    async with AIOKafkaProducer(bootstrap_servers=lab.bus.bootstrap) as producer:
        batch, key = producer.create_batch(), event.request_id.encode()
        for known, known_headers in map(encode, after):
            assert batch.append(key=key, value=known, timestamp=None, headers=known_headers) is not None
        assert batch.append(key=key, value=orjson.dumps(body), timestamp=None, headers=newer) is not None
        sent = await producer.send_batch(batch, STREAMS.name, partition=partition_for(event.request_id, PARTITIONS))
        await sent


async def test_a_stream_ends_at_a_recall_of_a_newer_version(lab):
    url = await lab.edge()
    async with lab.open_stream(url) as client:
        writer = await lab.next_writer()
        await lab.write(writer.started(), writer.chunk("harmless "))
        await client.until(b"harmless")
        await write_as_newer(lab, writer.recall(0, 8))
        await lab.write(writer.chunk("and secret"), writer.finished(), writer.closed())
        said = await client.rest()
    assert b"newer_version" in said
    assert b"secret" not in said
    assert b"[DONE]" not in said.split(b"newer_version")[0]


async def test_text_of_the_same_batch_is_not_sent(lab):
    """Text is not sent if a recall that the edge cannot read comes in the same record batch."""
    url = await lab.edge()
    async with lab.open_stream(url) as client:
        writer = await lab.next_writer()
        await lab.write(writer.started(), writer.chunk("harmless "))
        await client.until(b"harmless")
        await write_as_newer(lab, writer.recall(9, 15), after=[writer.chunk("secret")])
        said = await client.rest()
    assert b"newer_version" in said
    assert b"secret" not in said
    receipt = await lab.detached(writer.request_id)
    assert (receipt.ops, receipt.exposed_tokens) == (2, 1), "the receipt says what was sent"


@pytest.mark.parametrize("knows_it", [True, False])
async def test_it_cannot_be_read_again_there(lab, knows_it):
    """An edge that cannot read the recall of an answer does not show the answer to later readers.

    This holds for the edge that streamed the answer, and for another edge that reads the answer from the log.
    """
    url = await lab.edge()
    async with lab.open_stream(url):
        writer = await lab.next_writer()
        await lab.write(writer.started(), writer.chunk("secret"))
        await write_as_newer(lab, writer.recall(0, 6))
        await lab.write(writer.finished(), writer.closed())
    reader = url if knows_it else await lab.edge()
    path = f"{reader}/v1/requests/{writer.request_id}/events"
    await lab.until_text(path, b"newer_version")  # the edge that follows the log has come to the recall
    async with lab.http.get(path) as response:
        said = await response.read()
    assert b"newer_version" in said
    assert b"secret" not in said


async def test_a_websocket_is_told_too(lab):
    url = await lab.edge()
    async with lab.http.ws_connect(f"{url}/v1/stream") as socket:
        await socket.send_json({"type": "ask"} | ASK)
        writer = await lab.next_writer()
        await lab.write(writer.started())
        await write_as_newer(lab, writer.recall(0, 6))
        await lab.write(writer.chunk("secret"), writer.finished(), writer.closed())
        said = ""
        while "newer_version" not in said:
            said += await socket.receive_str()
    assert "secret" not in said


async def test_what_only_adds_is_skipped(lab):
    url = await lab.edge()
    async with lab.open_stream(url) as client:
        writer = await lab.next_writer()
        await lab.write(writer.started())
        await write_as_newer(lab, writer.cleared(final=False))
        await lab.write(writer.chunk("hello"), writer.finished(), writer.closed())
        assert b"[DONE]" in await client.rest()
