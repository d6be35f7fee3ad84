"""Test which requests the rails evaluate, and when.

The room is the maximum number of requests that are evaluated at the same time. Tenants take turns. One tenant gets at
most about three quarters of the room. The number of a tenant's waiting requests is limited, too.
"""

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from schemas.base import envelope
from schemas.ids import uuid7
from schemas.requests import Deadlines
from schemas.stream import Verdict
from schemas.topics import REQUESTS, STREAMS
from services.bus import Received
from services.processor import RecordDone, Write
from services.rails import core as core_module
from services.rails.core import EvaluateRequest, RailsCore
from services.rails.decide import CROWDED, deny_unread
from services.runtime.classes.policy_deadlines import DeadlineBounds
from services.runtime.classes.service_classes import ServiceClasses
from tests.unit.rails.world import PII_RAIL, policy, request

NOW_US = 2
ROOM = 8
MOST_WAITING = 16


def record(number, tenant, partition=0):
    asked = structs.replace(request(tenant=tenant), request_id=uuid7(1, number + 1))
    return Received(
        topic=REQUESTS.name, partition=partition, offset=number, timestamp_ms=0, event=asked, traceparent=None
    )


def read(core, number, tenant, partition=0):
    return [effect for effect in core.read(record(number, tenant, partition), NOW_US, NOW_US) if effect]


def test_flood_leaves_room_for_the_next_tenant():
    core = RailsCore(ROOM, MOST_WAITING)
    begun = [effect for number in range(100) for effect in read(core, number, "much")]
    assert sum(not effect.crowded for effect in begun) == 6
    assert sum(effect.crowded for effect in begun) == 100 - 6 - MOST_WAITING
    assert [effect.request.tenant for effect in read(core, 100, "little")] == ["little"]


def test_a_request_is_as_old_as_its_record_whatever_its_writer_says():
    for off_us in (-3_600_000_000, 3_600_000_000):
        item = record(0, "acme")
        asked = structs.replace(item.event, at=10**15 + off_us)
        total_us = asked.deadlines.total_ms * 1_000
        for age_us, effect in ((total_us - 1, EvaluateRequest), (total_us + 1, RecordDone)):
            core = RailsCore(ROOM)
            assert [type(e) for e in core.read(item._replace(event=asked), 10**15, 10**15 + age_us)] == [effect]


def test_tenants_take_turns_for_the_room_that_is_left():
    core = RailsCore(2)
    begun = [effect for number in range(6) for effect in read(core, number, "much")]
    assert not read(core, 6, "little")
    order = []
    while begun:
        done = begun.pop(0)
        order.append(done.request.tenant)
        begun += [effect for effect in core.evaluated(done, None) if isinstance(effect, EvaluateRequest)]
    assert order == ["much", "much", "much", "little", "much", "much", "much"]
    assert core.backlog == 0


def test_what_waited_on_a_lost_partition_takes_no_room():
    core = RailsCore(1, 4)
    assert len(read(core, 0, "much", partition=1)) == 1
    for _ in range(10):  # rebalances, while the room is taken
        assert not [effect for number in range(1, 5) for effect in read(core, number, "much")]
        core.lost(0)
    assert core.backlog == 1


def test_a_request_of_a_lost_partition_is_evaluated_again():
    """A request that is read again is evaluated again if its partition was lost, or its verdict was not written."""
    core = RailsCore(ROOM)
    (begun,) = read(core, 0, "acme", partition=1)
    (kept,) = read(core, 1, "acme", partition=2)
    core.evaluated(begun, None)
    assert [type(effect) for effect in read(core, 0, "acme", partition=1)] == [RecordDone]
    core.lost(1)
    assert [type(effect) for effect in read(core, 0, "acme", partition=1)] == [EvaluateRequest]
    assert [type(effect) for effect in read(core, 1, "acme", partition=2)] == [RecordDone]
    core.unwritten(kept.place, kept.request.request_id)
    assert [type(effect) for effect in read(core, 1, "acme", partition=2)] == [EvaluateRequest]


def test_crowded_request_is_denied_whatever_the_policy_allows():
    lenient = policy(
        ("policy.toml", PII_RAIL, PII_RAIL.replace('"deny"', '"allow"')),
        ("policy.toml", 'on_broken = "deny"        # likewise', 'on_broken = "allow"        # likewise'),
    )
    decided = deny_unread(lenient, request())
    assert (decided.decision, decided.refusal) == ("deny", lenient.document.refusals["broken"])
    assert [(rail.rail, rail.detail) for rail in decided.rails] == [("queue", CROWDED)]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from((0, 1)), st.booleans(), st.booleans())))
def test_every_request_is_begun_once_and_the_room_is_kept(steps):
    core, running, begun, lost = RailsCore(3, 4), [], set(), set()

    def take(effects):
        for effect in effects:
            if isinstance(effect, EvaluateRequest):
                assert effect.place not in begun
                begun.add(effect.place)
                running.append(effect)

    def end():
        one = running.pop(0)
        effects = core.evaluated(one, None)
        assert (RecordDone(one.place) in effects) == (one.place not in lost)
        take(effects)

    for number, (tenant, partition, ends, loses) in enumerate(steps):
        take(read(core, number, tenant, partition))
        assert sum(not effect.crowded for effect in running) <= 3
        if ends and running:
            end()
        if loses:
            core.lost(partition)
            lost |= {effect.place for effect in running if effect.place.partition == partition}
    while running:
        end()
    assert core.backlog == 0
    assert not core._running


def test_a_raw_request_gets_no_longer_deadline_than_the_policy_allows():
    """The policy's maximum deadline also applies to a request that an application writes directly to the topic."""
    classes = ServiceClasses(bounds=DeadlineBounds(total_ms=(1, 1_000)))
    asked = structs.replace(request(), deadlines=Deadlines(total_ms=86_400_000), at=1)
    raw = Received(REQUESTS.name, 0, 0, 0, asked, None)
    late_us = 1_001_000
    assert isinstance(RailsCore(1, classes=lambda: classes).read(raw, 1, late_us)[0], RecordDone)
    assert isinstance(RailsCore(1, classes=lambda: classes).read(raw, 1, 900_000)[0], EvaluateRequest)


def test_a_tenant_that_ends_one_of_its_share_begins_one():
    core = RailsCore(ROOM, MOST_WAITING)
    begun = [effect for number in range(15) for effect in read(core, number, "much")]
    assert len(begun) == 6
    assert [type(effect) for effect in core.evaluated(begun[0], None)] == [RecordDone, EvaluateRequest]


def test_a_verdict_is_written_with_its_trace_and_makes_room_for_the_next():
    core = RailsCore(1)
    item = record(0, "acme")._replace(traceparent="00-aa-bb-01")
    (begun,) = core.read(item, NOW_US, NOW_US)
    assert not read(core, 1, "acme")
    said = deny_unread(policy(), item.event)
    verdict = Verdict(**envelope(item.event, at=1, source="rails"), **said._asdict(), policy_version="v", total_ms=1.0)
    written, following = core.evaluated(begun, verdict)
    assert written == Write(STREAMS, verdict, "00-aa-bb-01", begun.place)
    assert following.place.offset == 1


def test_a_later_attempt_has_the_verdict_of_the_first():
    item = record(0, "acme")
    second = item._replace(event=structs.replace(item.event, attempt=2))
    assert [type(effect) for effect in RailsCore(ROOM).read(second, NOW_US, NOW_US)] == [RecordDone]


def test_the_requests_that_are_remembered_are_the_newest(monkeypatch):
    monkeypatch.setattr(core_module, "MAX_EVALUATED", 2)
    core = RailsCore(ROOM)
    for number in range(3):
        (begun,) = read(core, number, "acme")
        core.evaluated(begun, None)
    assert [type(*read(core, number, "acme")) for number in (2, 1, 0)] == [RecordDone, RecordDone, EvaluateRequest]


def test_requests_at_the_same_place_have_a_verdict_each():
    # The broker lost its newest records while the first was evaluated, and appended the second at the first's offset.
    core = RailsCore(ROOM)
    (first,) = core.read(record(5, "acme"), NOW_US, NOW_US)
    (second,) = core.read(record(6, "acme")._replace(offset=5), NOW_US, NOW_US)
    assert first.place == second.place
    written = []
    for one in (first, second):
        content = deny_unread(policy(), one.request)._asdict()
        verdict = Verdict(**envelope(one.request, at=1, source="rails"), **content, policy_version="v", total_ms=1)
        written += core.evaluated(one, verdict)
    assert [one.event.request_id for one in written] == [first.request.request_id, second.request.request_id]
    assert [one.done for one in written] == [None, second.place]
    assert core.backlog == 0
