import base64

import pytest

from schemas.errors import MalformedEvent
from schemas.side_events import DeadLetter
from services.bus import Received, UnreadableRecord, partition_for
from services.cli.show.dead_letters import (
    DeadLetterFilter,
    dead_letter_details,
    dead_letter_json,
    dead_letter_line,
    original_record,
    parse_dead_letter,
)

RID = "0199a2b4-1c00-7abc-8def-0123456789ab"


def b64(data):
    return None if data is None else base64.b64encode(data).decode()


KEY = RID.encode()


def dead_letter(
    number=7, *, topic="railbus.requests", key=KEY, value=b"\x00\x01", reason="Request: cut off", cut=False
):
    letter = DeadLetter(
        at=1_760_000_000_000_000, source="router/1", topic=topic, partition=3, offset=41, reason=reason,
        key_b64=b64(key), value_b64=b64(value), headers=(("kind", b64(b"Request")), ("v", b64(b"\xff"))), cut=cut,
    )  # fmt: skip
    return parse_dead_letter(Received("railbus.dead", 0, number, 0, letter, None))


def test_a_letter_is_told_in_one_line_without_its_contents():
    told = dead_letter_line(dead_letter(value=b'{"messages": "secret"}', reason="Request: a\nb" + "x" * 500))
    assert told.split()[:4] == ["7", "2025-10-09T08:53:20Z", "requests", "3:41"]
    assert RID[-8:] in told
    assert "22" in told.split()
    assert "secret" not in told
    assert "\n" not in told
    assert len(told) < 300


def test_what_is_no_letter_at_all_is_listed_as_found_among_the_dead():
    it = parse_dead_letter(
        UnreadableRecord("railbus.dead", 0, 9, 5, None, b"?", (("kind", None),), MalformedEvent("no kind"))
    )
    assert (it.number, it.topic, it.offset, it.reason) == (9, "railbus.dead", 9, "no kind")
    with pytest.raises(ValueError, match=r"9: it was found on railbus\.dead itself"):
        original_record(it, 4)


@pytest.mark.parametrize(
    ("wanted", "numbers"),
    [
        (DeadLetterFilter(), [1, 2, 3]),
        (DeadLetterFilter(topic="railbus.streams"), [2]),
        (DeadLetterFilter(reason="CUT"), [1, 2]),
        (DeadLetterFilter(request_id=RID), [1, 2]),
        (DeadLetterFilter(numbers=frozenset({3, 9})), [3]),
        (DeadLetterFilter(topic="railbus.streams", numbers=frozenset({1})), []),
    ],
)
def test_filters(wanted, numbers):
    letters = [dead_letter(1), dead_letter(2, topic="railbus.streams"), dead_letter(3, key=b"x", reason="other")]
    assert [it.number for it in letters if wanted.matches(it)] == numbers


def test_a_page_shows_text_as_text_and_the_rest_as_bytes():
    text = "\n".join(dead_letter_details(dead_letter(value="größer".encode()), 100))
    assert "größer" in text
    assert "header   v: ff" in text
    assert "found    railbus.requests partition 3 offset 41" in text
    dump = list(dead_letter_details(dead_letter(value=bytes(range(40))), 32))
    assert dump[-3].startswith("00000000  00 01 02")
    assert dump[-2].endswith(" 1e 1f  ................")
    assert dump[-1] == "... 8 bytes more: all of them with --raw"
    assert "value    none" in list(dead_letter_details(dead_letter(value=None), 10))
    assert not any("\x1b" in row for row in dead_letter_details(dead_letter(value=b"\x1b[31m red"), 100))


def test_text_that_is_cut_inside_a_character_is_still_text():
    assert list(dead_letter_details(dead_letter(value="aé".encode()), 2))[-2] == "a"


def test_put_back_are_the_original_bytes_where_readers_look_for_them():
    raw = original_record(dead_letter(), 4)
    assert raw == ("railbus.requests", partition_for(RID, 4), RID.encode(), b"\x00\x01", raw.headers)
    assert raw.headers == (("kind", b"Request"), ("v", b"\xff"))
    assert original_record(dead_letter(key=b"\xff"), 4).partition == 3
    assert original_record(dead_letter(key=None), 4).partition == 3


def test_what_was_not_kept_whole_is_not_put_back():
    with pytest.raises(ValueError, match=r"7: not all its bytes were kept; the original is at railbus\.requests 3:41"):
        original_record(dead_letter(cut=True), 4)
    assert original_record(dead_letter(reason="Request: too long (first 3 of 4 headers kept)"), 4)


def test_nothing_at_all_is_not_put_back():
    with pytest.raises(ValueError, match="neither key nor value"):
        original_record(dead_letter(key=None, value=None), 4)


def test_json_has_everything():
    said = dead_letter_json(dead_letter())
    assert said["value_b64"] == b64(b"\x00\x01")
    assert said["headers"] == [["kind", b64(b"Request")], ["v", b64(b"\xff")]]


@pytest.mark.parametrize(("topic", "moved"), [("railbus.control", True), ("railbus.ledger", False), ("nowhere", False)])
def test_only_what_is_spread_by_request_goes_where_its_request_lives(topic, moved):
    other = next(count for count in range(4, 100) if partition_for(RID, count) != 3)
    raw = original_record(dead_letter(topic=topic), other)
    assert (raw.partition != 3) == moved
