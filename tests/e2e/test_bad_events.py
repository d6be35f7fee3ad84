"""Records of another client that nobody can read, on every topic: counted, kept, and nothing hangs."""

import json
import re
import urllib.request

import pytest
from confluent_kafka import Producer

from schemas.topics import TOPICS
from tests.e2e.tree import wait

ID = "0199a2b4-1c00-7abc-8def-0123456789ab"
BODY = {"request_id": ID, "tenant": "local", "at": 1, "source": "test/1"}

MALFORMED = {
    "no headers": ([], ID, b"{}"),
    "no version": ([("kind", b"Closed")], ID, json.dumps(BODY | {"outcome": "failed"}).encode()),
    "garbage": ([("kind", b"Request"), ("v", b"1")], ID, b"\x00\xff\xfe garbage"),
    "no value": ([("kind", b"Chunk"), ("v", b"1")], ID, None),
    "no key": ([("kind", b"Closed"), ("v", b"1")], None, json.dumps(BODY | {"outcome": "failed"}).encode()),
    "wrong field": ([("kind", b"Request"), ("v", b"1")], ID, json.dumps(BODY | {"messages": "hi"}).encode()),
    "binary header": ([("kind", b"\xff\x00")], b"\xff", b"{}"),
}
SKIPPED = {
    "future version": ([("kind", b"Request"), ("v", b"2")], ID, b"{}"),
    "unknown kind": ([("kind", b"Hologram"), ("v", b"1")], ID, b"{}"),
}


def metric(url, name):
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE))


@pytest.mark.parametrize("topic", [topic.name for topic in TOPICS])
def test_nothing_hangs_or_dies_of_a_bad_event(tree, topic):
    before = tree.state["pids"]
    producer = Producer({"bootstrap.servers": tree.kafka, "partitioner": "murmur2_random"})
    for headers, key, value in (MALFORMED | SKIPPED).values():
        producer.produce(topic, value, key, headers=headers)
    assert producer.flush(20) == 0
    done = tree.railbus("ask", "still there?", "--max-tokens", "5", "--total-ms", "10000")
    assert done.returncode == 0, done
    assert tree.state["pids"] == before


def test_the_bad_ones_are_kept_with_their_reason_and_the_new_ones_counted(tree):
    topic = "railbus.requests"
    router = tree.state["health"]["router"]
    skipped = metric(router, "railbus_bus_skipped_total")
    producer = Producer({"bootstrap.servers": tree.kafka, "partitioner": "murmur2_random"})
    marker = b"\x00\xff kept as it was"
    producer.produce(topic, marker, ID, headers=[("kind", b"Request"), ("v", b"1")])
    producer.produce(topic, b"{}", ID, headers=[("kind", b"Request"), ("v", b"9")])
    assert producer.flush(20) == 0

    def buried():
        done = tree.railbus("tail", "--topic", "dead", "--from", "beginning", "--no-follow", "--json")
        letters = [json.loads(line)["event"] for line in done.stdout.splitlines() if '"DeadLetter"' in line]
        return [letter for letter in letters if letter["value_b64"] == "AP8ga2VwdCBhcyBpdCB3YXM="]

    wait(lambda: len(buried()) == 1, "the malformed record is in railbus.dead")
    (letter,) = buried()
    assert letter["topic"] == topic
    assert letter["reason"].startswith("Request: ")
    wait(lambda: metric(router, "railbus_bus_skipped_total") > skipped, "the newer version is counted as skipped")
