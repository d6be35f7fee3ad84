"""Test that record headers arrive as they were sent. They carry an event's kind, version and trace context."""

import pytest

from tests.contract.lab import KafkaClients, read_records

HEADERS: list[list[tuple[str, bytes | None]]] = [
    [],
    [("kind", b"Chunk"), ("version", b"1")],
    [("none", None), ("empty", b"")],
    [("binary", bytes(range(256)))],
    [("same", b"1"), ("other", b"2"), ("same", b"3"), ("same", b"1")],
    [("schlüssel-鍵-🔑", "wert-値".encode())],
    [("", b"an empty name")],
    [("large", b"x" * 40_000)],
    [(f"h{n}", f"{n}".encode()) for n in range(200)],
]


@pytest.mark.parametrize("headers", HEADERS, ids=lambda h: h[0][0][:8] if h else "no headers")
async def test_headers_are_kept(lab: KafkaClients, headers: list[tuple[str, bytes | None]]) -> None:
    topic = await lab.topic()
    producer = await lab.producer(max_batch_size=100_000)
    await producer.send_and_wait(topic, b"v", headers=headers)

    (record,) = await read_records(await lab.reader(topic), 1)

    assert list(record.headers) == headers


async def test_each_record_of_a_batch_has_its_own_headers(lab: KafkaClients) -> None:
    topic = await lab.topic()
    producer = await lab.producer()
    batch = producer.create_batch()
    for n in range(5):
        batch.append(timestamp=None, key=None, value=b"v", headers=[("n", f"{n}".encode())] * n)
    await (await producer.send_batch(batch, topic, partition=0))

    records = await read_records(await lab.reader(topic), 5)

    assert [list(record.headers) for record in records] == [[("n", f"{n}".encode())] * n for n in range(5)]
