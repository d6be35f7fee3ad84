"""Test that the registry has one row per kind of event, and that topics, roles and documents agree with the rows."""

import json
from pathlib import Path

import pytest
from msgspec import structs

from schemas import base, batches, requests, side_events, stream
from schemas.__main__ import README
from schemas.base import AnyEvent, Event, envelope, run_envelope
from schemas.batches import BatchEvent
from schemas.documents.asyncapi import document
from schemas.documents.tables import with_tables
from schemas.registry import KINDS, ROLES, kinds_on, read_kinds, reads, writes
from schemas.requests import Request
from schemas.stream import Closed, Cutover, RunEvent, Started, StreamEvent, Verdict
from schemas.topics import DEAD, REQUESTS, REQUESTS_BATCH, REQUESTS_VERTEX, STREAMS, TOPIC_NAMED, TOPICS

SERVICES = Path(__file__).parents[3] / "services"
BASES = {AnyEvent, Event, StreamEvent, RunEvent, BatchEvent}
PLACES = [(kind, place) for kind in KINDS.values() for place in kind.access]


def test_every_event_class_is_a_base_or_has_a_row():
    found = {
        cls
        for module in (base, batches, requests, stream, side_events)
        for cls in vars(module).values()
        if isinstance(cls, type) and issubclass(cls, AnyEvent)
    }
    assert found == BASES | {kind.cls for kind in KINDS.values()}


def test_a_kind_is_called_as_its_class_and_stands_somewhere_once():
    for name, kind in KINDS.items():
        topics = [place.topic for place in kind.access]
        assert (name, bool(topics), len(topics)) == (kind.cls.__name__, True, len(set(topics)))


def test_every_topic_has_a_kind_and_the_stream_log_exactly_its_own():
    assert all(kinds_on(topic) for topic in TOPICS)
    assert {kind.cls for kind in kinds_on(STREAMS)} == {k.cls for k in KINDS.values() if issubclass(k.cls, StreamEvent)}


def test_the_key_is_a_field_and_one_for_all_topics_of_a_kind():
    for kind in KINDS.values():
        (key,) = {place.topic.key for place in kind.access}
        assert key == kind.key
        assert key == "none" or key in {field.name for field in structs.fields(kind.cls)}
        assert (key == "request_id") == issubclass(kind.cls, Event)


def test_prompts_are_fields():
    assert KINDS["Request"].prompts == ("messages",)
    assert KINDS["Verdict"].prompts == ("masked",)
    for kind in KINDS.values():
        assert set(kind.prompts) <= {field.name for field in structs.fields(kind.cls)}


def test_roles_are_programs():
    outside = {"app", "operator"}
    for role in set(ROLES) - outside:
        assert (SERVICES / role / "__main__.py").is_file(), role
    assert {role for _, place in PLACES for role in place.writers | place.readers} == set(ROLES)


def test_who_writes_is_who_is_asked_for_what_it_writes():
    for kind, place in PLACES:
        for role in ROLES:
            assert (role in place.writers) == (kind.cls in writes(role).get(place.topic.name, ()))
            assert (role in place.readers) == (kind.cls in reads(role).get(place.topic.name, ()))
            assert (role in place.readers) == (kind.name in read_kinds(role, place.topic))


def test_roles_put_together_write_what_each_of_them_writes():
    both = writes("router", "edge")
    assert both.keys() == writes("router").keys() | writes("edge").keys()
    assert both[REQUESTS_BATCH.name] == {Request}
    assert both[STREAMS.name] == {Cutover, Closed}


def test_the_router_the_archiver_and_the_operator_read_everything():
    everything = {topic.name: {kind.cls for kind in kinds_on(topic)} for topic in TOPICS}
    assert reads("router") == reads("audit") == reads("operator") == everything
    assert not writes("audit")


def test_what_was_said_wrongly_before():
    assert writes("router")[REQUESTS.name] == {Request}
    assert writes("edge")[REQUESTS_BATCH.name] == {Request}
    assert {REQUESTS.name, REQUESTS_BATCH.name} <= reads("edge").keys()
    assert Cutover not in reads("safety")[STREAMS.name]
    operations = document()["operations"]
    assert {"router.send.railbus.requests", "edge.send.railbus.requests.batch"} <= operations.keys()
    assert {name.split(".")[0] for name in operations} == set(ROLES)


def test_every_kind_has_a_writer():
    assert [(kind.name, place.topic) for kind, place in PLACES if not place.writers] == []


def test_operations_are_the_places():
    said = {
        (name.split(".")[0], operation["action"], operation["channel"]["$ref"].removeprefix("#/channels/"), kind)
        for name, operation in document()["operations"].items()
        for kind in (message["$ref"].rsplit("/", 1)[1] for message in operation["messages"])
    }
    sent = {(role, "send", place.topic.name, kind.name) for kind, place in PLACES for role in place.writers}
    received = {(role, "receive", place.topic.name, kind.name) for kind, place in PLACES for role in place.readers}
    assert said == sent | received


def test_the_router_takes_its_topics_from_the_registry():
    from services.router.core import READ_TOPICS

    assert {*READ_TOPICS, DEAD} == set(TOPICS)
    assert list(writes("app")) == [REQUESTS.name, REQUESTS_BATCH.name]
    assert REQUESTS_VERTEX.name not in writes("app")


def test_topics_are_found_by_their_names():
    assert list(TOPIC_NAMED.values()) == list(TOPICS)


def test_the_readme_holds_the_tables():
    told = README.read_text("utf-8")
    assert with_tables(told) == told
    for topic in TOPICS:
        assert f"| `{topic.name}` |" in told
    spoilt = told.replace("Sums over accounts", "Somebody over accounts")
    assert with_tables(spoilt) == told
    with pytest.raises(ValueError, match="begin topics"):
        with_tables("no tables here\n")


def test_an_envelope_is_what_it_is_about_and_who_says_so_when():
    lines = (Path(__file__).parents[2] / "data" / "events-v1.jsonl").read_text("utf-8").splitlines()
    said = {json.loads(line)["headers"]["kind"]: json.loads(json.loads(line)["value"]) for line in lines}
    about = said["Started"]
    started = Started(**about)
    wanted = {"request_id": about["request_id"], "tenant": about["tenant"], "at": 7, "source": "edge/1"}
    assert envelope(started, at=7, source="edge/1") == wanted
    assert run_envelope(started, at=7, source="edge/1") == wanted | {"attempt": about["attempt"], "run": about["run"]}
    assert Closed(**envelope(started, at=7, source="edge/1"), outcome="failed").at == 7
    assert {field.name for field in structs.fields(Event)} == set(wanted)
    assert {field.name for field in structs.fields(RunEvent)} == set(run_envelope(started, at=7, source="edge/1"))
    assert structs.fields(Verdict)[0].name == "request_id"
