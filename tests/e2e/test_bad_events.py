"""Test that unreadable records on any topic are counted and kept as dead letters, and that no service hangs or dies."""

import base64
import json
import re
import urllib.request

import pytest
from confluent_kafka import Producer

from schemas.topics import TOPICS
from tests.support.waiting import wait_until

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
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE))


@pytest.mark.parametrize("topic", [topic.name for topic in TOPICS])
def test_nothing_hangs_or_dies_of_a_bad_event(tree, topic):
    before = tree.state["pids"]
    producer = Producer({"bootstrap.servers": tree.kafka, "partitioner": "murmur2_random"})
    for headers, key, value in (MALFORMED | SKIPPED).values():
        producer.produce(topic, value, key, headers=headers)
    assert producer.flush(20) == 0
    done = tree.railbus("ask", "still there?", "--max-tokens", "5", "--total-ms", "40000")
    assert done.returncode == 0, done
    assert before.items() <= tree.state["pids"].items()  # the batch service may start only now


def test_every_one_of_every_topic_is_kept_as_it_was(tree):
    producer = Producer({"bootstrap.servers": tree.kafka, "partitioner": "murmur2_random"})
    wrong = MALFORMED | SKIPPED
    for topic in TOPICS:
        for name, (headers, key, value) in wrong.items():
            producer.produce(topic.name, value, key, headers=[*headers, ("case", name.encode())])
    assert producer.flush(20) == 0

    def found():
        done = tree.railbus("dead", "list", "--limit", "1000", "--json")
        assert done.returncode == 0, done
        return {(each["topic"], case_of(each)): each for each in map(json.loads, done.stdout.splitlines())}

    cases = {(topic.name, name) for topic in TOPICS for name in wrong}
    wait_until(lambda: cases <= found().keys(), "all of them are in railbus.dead", within_s=90)
    for (topic, name), letter in found().items():
        if name is not None:
            _, key, value = wrong[name]
            assert letter["reason"], (topic, name)
            assert decoded(letter["value_b64"]) == value
            assert decoded(letter["key_b64"]) == (key.encode() if isinstance(key, str) else key)


def case_of(letter):
    return next((decoded(value).decode() for name, value in letter["headers"] if name == "case"), None)


def decoded(text):
    return None if text is None else base64.b64decode(text)


def test_one_of_them_is_listed_shown_and_put_back(tree):
    producer = Producer({"bootstrap.servers": tree.kafka, "partitioner": "murmur2_random"})
    value = b"\x00 put me back"
    producer.produce("railbus.control", value, "put-back", headers=[("kind", b"Cancel"), ("v", b"1")])
    assert producer.flush(20) == 0

    def numbers():
        done = tree.railbus("dead", "list", "--topic", "control", "--json")
        letters = map(json.loads, done.stdout.splitlines())
        return [letter["number"] for letter in letters if decoded(letter["value_b64"]) == value]

    wait_until(lambda: len(numbers()) == 1, "it is in railbus.dead", within_s=90)
    (number,) = numbers()
    shown = tree.railbus("dead", "show", str(number))
    assert "railbus.control partition" in shown.stdout
    assert "00 20 70 75 74" in shown.stdout
    refused = tree.railbus("dead", "replay", str(number))
    assert (refused.returncode, "give --yes" in refused.stderr) == (2, True), refused
    assert len(numbers()) == 1
    done = tree.railbus("dead", "replay", str(number), "--yes")
    assert (done.returncode, f"{number} -> railbus.control" in done.stdout) == (0, True), done
    wait_until(lambda: len(numbers()) == 2, "the router read it again, in vain", within_s=90)


def test_a_foreign_record_on_the_dead_topic_is_listed_without_a_warning(tree):
    producer = Producer({"bootstrap.servers": tree.kafka})
    producer.produce("railbus.dead", b"a foreign record")
    assert producer.flush(20) == 0
    done = tree.railbus("dead", "list", "--reason", "header 'kind' is missing", "--topic", "dead")
    assert "dead 0:" in done.stdout
    assert re.fullmatch(r"\d+ dead letter\(s\)\n", done.stderr)
    assert not tree.said("malformed: railbus.dead")


def test_what_is_not_there_is_said(tree):
    for args, said in (
        (("show", "999999"), "there is no dead letter 999999"),
        (("replay", "999999", "--yes"), "no such dead letter: 999999"),
        (("replay", "--yes"), "name the dead letters"),
        (("list", "--topic", "nope"), "--topic 'nope': must be one of"),
        (("list", "--limit", "0"), "--limit 0: must be"),
    ):
        done = tree.railbus("dead", *args)
        assert (done.returncode, said in done.stderr) == (2, True), done


def test_the_bad_ones_are_kept_with_their_reason_and_the_new_ones_counted(tree):
    topic = "railbus.requests"
    router = tree.state["health"]["router"]
    skipped = metric(router, "railbus_bus_skipped_total")
    producer = Producer({"bootstrap.servers": tree.kafka, "partitioner": "murmur2_random"})
    marker = b"\x00\xff kept as it was"
    producer.produce(topic, marker, ID, headers=[("kind", b"Request"), ("v", b"1")])
    producer.produce(topic, b"{}", ID, headers=[("kind", b"Request"), ("v", b"9")])
    assert producer.flush(20) == 0

    kept = base64.b64encode(marker).decode()

    def tail(*options):
        return tree.railbus("tail", "--from", "beginning", "--no-follow", "--json", *options).stdout

    def dead_letters():
        lines = tail("--topic", "dead", "--show-prompts").splitlines()
        letters = [json.loads(line)["event"] for line in lines if '"DeadLetter"' in line]
        return [letter for letter in letters if letter["value_b64"] == kept]

    wait_until(lambda: len(dead_letters()) == 1, "the malformed record is in railbus.dead", within_s=90)
    (letter,) = dead_letters()
    assert letter["topic"] == topic
    assert letter["reason"].startswith("Request: ")
    assert kept not in tail(), "a malformed request may hold a prompt"
    wait_until(lambda: metric(router, "railbus_bus_skipped_total") > skipped, "the newer version is counted as skipped")
