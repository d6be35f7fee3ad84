"""Test that the gate or the output check is off only if both ``Governance`` and ``Started`` say ``off``."""

import pytest

from services.stream import AS_STARTED, Governance, Screen
from tests.unit.stream.histories import REQUEST_ID
from tests.unit.stream.test_rules import allow, chunk, cleared, finished, started

INSISTS = Governance()
UNCHECKED = (started(gate="off", check="off", exposure=64), chunk(0, 0, "word", tokens=200))
"""Events of a worker that says that there are neither rails nor a safety service."""


def shown(screen, *events):
    for event in events:
        screen.feed(event)
    return screen.visible


def test_a_worker_that_denies_the_gate_shows_nothing_before_the_verdict():
    screen = Screen(REQUEST_ID, Governance(input_gate="hold", output_check="off"))
    assert shown(screen, *UNCHECKED) == ""
    assert shown(screen, allow()) == "word"


def test_its_text_waits_for_the_safety_service_beyond_the_exposure_limit():
    screen = Screen(REQUEST_ID, INSISTS)
    assert shown(screen, *UNCHECKED, allow()) == ""  # 200 tokens; at most 64 may be shown unchecked
    assert shown(screen, finished(0)) == ""
    assert not screen.over
    assert shown(screen, cleared(0, final=True)) == "word"
    assert screen.over


@pytest.mark.parametrize(
    ("governance", "visible"),
    [
        (AS_STARTED, True),
        (Governance(input_gate="off", output_check="on"), False),
        (Governance(input_gate="hold", output_check="off"), False),
    ],
)
def test_unchecked_text_needs_the_word_of_both(governance, visible):
    assert bool(shown(Screen(REQUEST_ID, governance), *UNCHECKED)) is visible


def test_a_worker_may_insist_on_more_than_the_reader():
    screen = Screen(REQUEST_ID, AS_STARTED)
    assert shown(screen, started(gate="hold", check="on"), chunk(0, 0, "text")) == ""
    assert shown(screen, allow()) == "text"
