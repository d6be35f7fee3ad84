"""What a reader insists on counts, whatever a worker says of itself."""

import pytest

from schemas.ids import uuid7
from services.stream import AS_STARTED, Governance, Screen
from tests.support.edge_answers import AnswerWriter

ID = uuid7(1_700_000_000_000, 1)
INSISTS = Governance()
LONG = "word " * 200


def shown(screen, *events):
    for event in events:
        screen.feed(event)
    return screen.visible


def unchecked_answer():
    writer = AnswerWriter(ID, checked=False)  # says: no rails, no safety service
    return writer, (writer.started(), writer.chunk(LONG, tokens=200))


def test_a_worker_that_says_it_is_not_gated_shows_nothing_before_the_verdict():
    writer, events = unchecked_answer()
    screen = Screen(ID, INSISTS)
    assert shown(screen, *events) == ""
    assert shown(screen, writer.denied()) == "No."


def test_its_text_waits_for_the_safety_service_beyond_the_exposure_limit():
    writer, events = unchecked_answer()
    screen = Screen(ID, INSISTS)
    assert shown(screen, *events, writer.allowed()) == ""  # 200 tokens; at most 64 may be shown unchecked
    assert shown(screen, writer.finished()) == ""
    assert not screen.over
    assert shown(screen, writer.cleared()) == LONG
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
    _, events = unchecked_answer()
    assert bool(shown(Screen(ID, governance), *events)) is visible


def test_a_worker_may_insist_on_more_than_the_reader():
    writer = AnswerWriter(ID, checked=True)
    screen = Screen(ID, AS_STARTED)
    assert shown(screen, writer.started(), writer.chunk("text")) == ""
    assert shown(screen, writer.allowed()) == "text"
