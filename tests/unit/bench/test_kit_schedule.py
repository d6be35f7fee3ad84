"""Test that the name of the requested model determines what the test model server sends, and at which times."""

import json
from itertools import pairwise

import pytest

from tests.bench.kit.schedule import HEAD, STALL_MS, ScheduleError, parse_schedule, streamed, tokens, whole


def steps(model, prompt="hello", **more):
    return list(streamed(parse_schedule(model), model, prompt, 1, **more))


def events(found):
    body = b"".join(step.data for step in found).replace(HEAD, b"")
    lines = [line for line in body.split(b"\r\n") if line.startswith((b"data:", b":"))]
    return [event.strip() for line in lines for event in line.split(b"\n\n") if event.strip()]


def deltas(found):
    frames = [json.loads(event[6:]) for event in events(found) if event.startswith(b"data: {")]
    return [frame["choices"][0]["delta"] for frame in frames if frame["choices"]]


def test_chunks_are_due_at_absolute_times():
    found = steps("fake-A-t30-g20-n50")
    assert [step.at_ms for step in found] == [*(30 + 20 * number for number in range(50)), 30 + 20 * 49]
    assert "".join(delta.get("content", "") for delta in deltas(found)) == parse_schedule("fake-A-n50").text
    assert found[0].data.startswith(HEAD)
    assert found[-1].data.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert sum(step.chunks for step in found) == 50


def test_prefill_grows_with_the_prompt():
    short, long = (steps("fake-A-t10-p500-n1", prompt)[0].at_ms for prompt in ("x" * 40, "x" * 4_000))
    assert (short, long) == (15.0, 510.0)
    assert tokens("x" * 41) == 11


def test_jitter_is_drawn_from_the_seed_and_the_prompt():
    model = "fake-A-g20-n30-j50"
    times = [step.at_ms for step in steps(model)]
    assert times == [step.at_ms for step in steps(model)]
    assert times != [step.at_ms for step in steps(f"{model}-s1")]
    assert times != [step.at_ms for step in steps(model, "another prompt")]
    gaps = [later - earlier for earlier, later in pairwise(times[:30])]
    assert all(10 <= gap <= 30 for gap in gaps)
    assert len(set(gaps)) > 20


def test_a_stall_moves_everything_behind_it():
    times = [step.at_ms for step in steps("fake-A-t30-g20-n4-stall2")]
    assert times[:4] == [30, 50, 70 + STALL_MS, 90 + STALL_MS]


def test_a_connection_is_reset_after_so_many_chunks():
    found = steps("fake-A-n9-close3")
    assert sum(step.chunks for step in found) == 3
    assert found[-1].reset
    assert b"[DONE]" not in b"".join(step.data for step in found)


@pytest.mark.parametrize(
    ("model", "head_ms", "first_ms"),
    [("fake-A-t200", 200, 200), ("fake-A-t200-h0", 0, 200), ("fake-A-t200-h500", 500, 500), ("fake-A-t9-role", 0, 9)],
)
def test_the_head_is_sent_when_the_name_says(model, head_ms, first_ms):
    found = steps(model)
    assert next(step.at_ms for step in found if HEAD in step.data) == head_ms
    assert next(step.at_ms for step in found if step.chunks) == first_ms
    assert sum(HEAD in step.data for step in found) == 1


@pytest.mark.parametrize(
    ("model", "sign"), [("fake-A-t350-ka", b": keep-alive"), ("fake-A-t350-empty", b'"content":""')]
)
def test_signs_of_life_come_before_the_first_token_only(model, sign):
    found = steps(model)
    assert [step.at_ms for step in found if sign in step.data] == [100, 200, 300]


def test_usage_is_counted_where_it_is_asked_for():
    *_, last = (event for event in events(steps("fake-A-n7", "x" * 40, usage=True)) if event.startswith(b"data: {"))
    assert json.loads(last[6:])["usage"] == {"prompt_tokens": 10, "completion_tokens": 7, "total_tokens": 17}
    assert b"usage" not in b"".join(step.data for step in steps("fake-A-n7"))


def test_a_whole_answer_is_due_with_its_last_chunk():
    schedule = parse_schedule("fake-B-t30-g20-n3")
    step = whole(schedule, "fake-B-t30-g20-n3", "hello", 1)
    assert step.at_ms == 70
    body = json.loads(step.data.partition(b"\r\n\r\n")[2])
    assert body["choices"][0]["message"]["content"] == "B000 B001 B002 "


@pytest.mark.parametrize(
    "model", ["gpt-4", "fake-A-t", "fake-A-x5", "fake-A-t-5", "fake-A-n0", "fake-A-err200", 'fake-"', "fake-A-j101"]
)
def test_a_name_that_is_no_schedule_is_refused(model):
    with pytest.raises(ScheduleError, match="model"):
        parse_schedule(model)
