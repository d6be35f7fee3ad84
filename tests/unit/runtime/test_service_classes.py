"""Test which service class a request gets, and which deadlines the class gives the request."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from schemas.requests import Deadlines, Message, Request
from services.runtime.classes.policy_deadlines import DAY_MS, DeadlineBounds
from services.runtime.classes.service_classes import ClassSpec, DefaultDeadlines, ServiceClasses, read_service_classes
from services.runtime.errors import UserError

TEXT = """
[deadlines]
total_ms = [500, 30000]

[classes.chat]
deadlines = { ttft_ms = 300 }

[classes.support]
priority = 2
bounds = { total_ms = [1000, 20000] }
slo = { total = { ms = 5000 }, share = 0.9 }

[classes.nightly]
lane = "batch"
bounds = { total_ms = [500, 7200000] }
"""

NAMES = st.sampled_from([None, "chat", "voice", "batch", "support", "nightly", "unheard-of"])
MS = st.integers(1, DAY_MS)


def request(**changed):
    return Request(
        request_id="x", tenant="t", at=1, source="s", messages=(Message(role="user", content="hi"),), **changed
    )


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policy")
    (folder / "policy.toml").write_text(TEXT)
    return read_service_classes(folder)


def test_a_policy_without_classes_has_three():
    built_in = ServiceClasses()
    assert built_in.names == ("batch", "chat", "voice")
    assert built_in.get("chat").deadlines == Deadlines()
    assert built_in.get("batch").deadlines.total_ms == DAY_MS == built_in.longest_total_ms("batch")
    assert built_in.longest_total_ms("interactive") == DeadlineBounds().total_ms[1]


def test_a_class_inherits_what_it_does_not_name(classes):
    support, chat, nightly = (classes.get(name) for name in ("support", "chat", "nightly"))
    assert (support.lane, support.priority) == ("interactive", 2)
    assert support.bounds == DeadlineBounds(total_ms=(1_000, 20_000))
    assert support.deadlines == Deadlines(total_ms=20_000)
    assert (support.slo.total.ms, support.slo.share, support.slo.first_token) == (5_000, 0.9, None)
    assert chat.deadlines == Deadlines(ttft_ms=300, total_ms=30_000)
    assert chat.slo == ServiceClasses().get("chat").slo
    assert (nightly.bounds.total_ms, nightly.bounds.verdict_ms[1]) == ((500, 7_200_000), DAY_MS)
    assert classes.longest_total_ms("interactive") == 30_000
    assert classes.longest_total_ms("batch") == DAY_MS


@given(name=NAMES, lane=st.sampled_from(["interactive", "batch"]), asked=st.builds(Deadlines, ttft_ms=MS, total_ms=MS))
def test_no_request_gets_deadlines_beyond_its_lane(classes, name, lane, asked):
    wanted = request(service_class=name, lane=lane, deadlines=asked)
    chosen, deadlines = classes.of_request(wanted), classes.deadlines_of(wanted)
    assert chosen.lane == lane
    assert deadlines.total_ms <= classes.longest_total_ms(lane)
    for field, ms in structs.asdict(deadlines).items():
        least, largest = chosen.bounds.of(field)
        assert least <= ms <= largest
        assert ms == getattr(asked, field) or ms in {least, largest}
    assert classes.deadlines_of(structs.replace(wanted, deadlines=deadlines)) == deadlines


def test_an_unknown_class_or_one_of_the_other_lane_is_the_lanes_own(classes):
    assert classes.of("unheard-of", "interactive").name == "chat"
    assert classes.of("batch", "interactive").name == "chat"
    assert classes.of("voice", "batch").name == "batch"
    assert classes.of("nightly", "batch").name == "nightly"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[classes.chat]\nlane = "batch"', "classes.chat: its lane must be interactive"),
        ("[classes.x]\nbounds = { total_ms = [10, 5] }", "classes.x.bounds: total_ms: the least, 10, is above"),
        ("[classes.x]\ndeadlines = { ttft_ms = 5 }", "classes.x.deadlines: ttft_ms is 5, and the bounds are 20 to"),
        ("[classes.x]\nother = 1", "unknown field `other`"),
        ("[classes.X]", "regex"),
        ("[classes.x.slo]\ntotal = { percentile = 99, ms = 5 }", "unknown field `percentile`"),
        ("[classes.x]\npriority = 10", "<= 9"),
    ],
)
def test_a_mistake_names_the_class_and_the_file(tmp_path, text, said):
    (tmp_path / "policy.toml").write_text(text)
    with pytest.raises(UserError, match=r"RAILBUS_POLICY: .*policy\.toml") as refused:
        read_service_classes(tmp_path)
    assert said in str(refused.value)


@pytest.mark.parametrize(("stall_ms", "wanted"), [((1_000, 30_000), 1_000), ((100, 400), 400), ((100, 30_000), 500)])
def test_bounds_move_the_deadline_of_a_class_that_the_policy_does_not_name(stall_ms, wanted):
    assert ServiceClasses(None, DeadlineBounds(stall_ms=stall_ms)).get("voice").deadlines.stall_ms == wanted


def test_a_deadline_that_the_policy_names_must_be_within_the_bounds():
    named = {"voice": ClassSpec(deadlines=DefaultDeadlines(stall_ms=500))}
    with pytest.raises(ValueError, match="stall_ms is 500"):
        ServiceClasses(named, DeadlineBounds(stall_ms=(1_000, 30_000)))
