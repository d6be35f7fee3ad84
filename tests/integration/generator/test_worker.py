"""Test that the generator's process writes the right events for every request on a real broker, also after failures."""

import asyncio
import json
import sys

import pytest
from aiokafka import AIOKafkaProducer

from schemas.stream import Failed, Finished, Started
from schemas.topics import REQUESTS
from schemas.wire import encode
from services.stream import Screen
from tests.integration.generator.lab import make_request
from tests.integration.generator.upstream import breaks_off, falls_silent, refuses, running_upstream, says
from tests.support.processes import bare_environment


async def test_a_request_becomes_an_answer(lab):
    await lab.generator()
    assert lab.ready_line == "generator engine=simulated model=simulated"
    asked = await lab.ask("simulated-n40", mode="optimistic")
    end = await lab.end(asked)
    assert isinstance(end, Finished)
    assert (end.finish_reason, end.usage.completion_tokens) == ("stop", 40)
    assert end.speculation is not None
    started, *chunks, _ = lab.events(asked)
    assert isinstance(started, Started)
    assert (started.model, started.engine, started.attempt) == ("simulated-n40", "simulated", 1)
    assert (started.input_gate, started.output_check) == ("off", "off")
    assert started.source.startswith("generator/")
    assert sum(chunk.tokens for chunk in chunks) == 40
    assert len(lab.check(asked)) == 1
    screen = Screen(asked)
    for event in lab.events(asked):
        screen.feed(event)
    assert screen.visible == "".join(chunk.text for chunk in chunks)
    assert screen.over


async def test_started_tells_the_settings(lab):
    await lab.generator(RAILBUS_INPUT_GATE="hold", RAILBUS_OUTPUT_CHECK="on")
    asked = await lab.ask(mode="gated", total_ms=54_321)
    await lab.end(asked)
    (started,) = lab.events(asked, Started)
    assert (started.input_gate, started.output_check) == ("hold", "on")
    assert (started.delivery.mode, started.deadlines.total_ms) == ("gated", 54_321)


async def test_the_trace_goes_on(lab):
    await lab.generator()
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    request = make_request()
    await lab.producer.send(REQUESTS, request, traceparent=trace)
    await lab.end(request.request_id)
    assert {record.traceparent for record in lab.records} == {trace}


async def test_what_cannot_be_answered_is_refused_with_a_reason(lab):
    await lab.generator()
    unknown = await lab.ask("gpt-9")
    gated = await lab.ask(mode="gated")
    late = await lab.ask(age_ms=5_000, total_ms=4_000)
    assert (await lab.end(unknown)).message == "this model is not served here; served is 'simulated'"
    assert (await lab.end(unknown)).param == "model"
    assert "RAILBUS_OUTPUT_CHECK=off" in (await lab.end(gated)).message
    assert (await lab.end(late)).error_class == "timeout"
    for asked in (unknown, gated, late):
        (failed,) = lab.events(asked)
        assert isinstance(failed, Failed)
        assert not failed.retryable
        assert failed.last_seq == -1


async def test_a_cancel_stops_a_running_answer(lab):
    async with running_upstream() as upstream:
        upstream.script = says(*["word "] * 10_000, gap_s=0.01)
        await lab.generator(RAILBUS_ENGINE="openai", RAILBUS_UPSTREAM_URL=upstream.address)
        asked = await lab.ask()
        await lab.chunk(asked, 3)
        await lab.cancel(asked, reason="denied")
        end = await lab.end(asked)
        assert (end.error_class, end.retryable, end.message) == ("cancelled", False, "cancelled: denied")
        assert end.usage.completion_tokens == end.last_seq + 1 == len(lab.chunks(asked))
        async with asyncio.timeout(30):
            await upstream.gone.wait()
        lab.check(asked)


async def test_a_cancel_reaches_what_waits_and_what_is_not_there_yet(lab):
    await lab.generator(RAILBUS_GENERATOR_SLOTS="1")
    runs = await lab.ask("simulated-stall1")
    await lab.chunk(runs)
    waits = await lab.ask()
    await lab.cancel(waits)
    assert (await lab.end(waits)).error_class == "cancelled"
    later = make_request()
    await lab.cancel(later.request_id, attempt=1)
    await lab.send(later)
    await lab.cancel(runs, attempt=1)
    assert (await lab.end(runs)).error_class == "cancelled"
    assert (await lab.end(later.request_id)).error_class == "cancelled"
    assert not lab.events(waits, Started) + lab.events(later.request_id, Started)
    assert isinstance(await lab.end(await lab.ask("simulated-n5")), Finished), "the slot is free"


async def test_a_cancel_may_come_at_any_moment(lab):
    await lab.generator(RAILBUS_GENERATOR_SLOTS="8")

    async def ask(number):
        asked = await lab.ask("simulated-n20")
        if number % 3:
            await asyncio.sleep(number % 30 / 400)
            await lab.cancel(asked)
        return asked

    asked = await asyncio.gather(*(ask(number) for number in range(90)))
    for number, each in enumerate(asked):
        end = await lab.end(each)
        assert isinstance(end, Finished) or (number % 3 and end.error_class == "cancelled")
    assert isinstance(await lab.end(await lab.ask("simulated-n5")), Finished), "no slot was lost"
    for each in asked:
        assert len(lab.check(each)) == 1
        assert len(lab.events(each, Finished, Failed)) == 1


async def test_a_cancel_of_another_attempt_changes_nothing(lab):
    await lab.generator()
    asked = await lab.ask("simulated-n60")
    await lab.chunk(asked)
    await lab.cancel(asked, attempt=2)
    assert isinstance(await lab.end(asked), Finished)


async def test_no_answer_outlives_its_request(lab):
    await lab.generator()
    asked = await lab.ask("simulated-stall2", total_ms=8_000)  # long enough that it has begun by then, busy or not
    end = await lab.end(asked)
    assert (end.error_class, end.message, end.retryable, end.last_seq) == (
        "timeout",
        "the deadline of 8000 ms has passed",
        False,
        1,
    )


async def test_a_repeated_request_is_answered_once(lab):
    await lab.generator()
    request = make_request("simulated-n20")
    for _ in range(3):
        await lab.send(request)
    await lab.end(request.request_id)
    last = await lab.ask("simulated-n5")
    await lab.end(last)
    assert len(lab.check(request.request_id)) == 1


async def test_more_than_it_can_do_waits_its_turn(lab):
    await lab.generator(RAILBUS_GENERATOR_SLOTS="2", RAILBUS_GENERATOR_QUEUE="2")
    # The answers are slow and asked for at the same time, so that several must run at once.
    asked = await asyncio.gather(*(lab.ask("simulated-n30-slow300") for _ in range(10)))
    assert all([isinstance(await lab.end(each), Finished) for each in asked])
    moments = []
    for each in asked:
        events = lab.events(each)
        moments += [(events[0].at, 1), (events[-1].at, -1)]
    at_once = most = 0
    for _, change in sorted(moments):
        at_once += change
        most = max(most, at_once)
    assert most == 2


async def test_batch_waits_for_interactive(lab):
    await lab.generator(RAILBUS_GENERATOR_SLOTS="2")
    talks = await lab.ask("simulated-stall1")
    also = await lab.ask("simulated-slow300-n5")
    await lab.chunk(talks)
    batch = [await lab.ask("simulated-n10", lane="batch") for _ in range(3)]
    await lab.end(also)
    await asyncio.sleep(0.3)
    assert not any(lab.events(each) for each in batch), "one slot is kept free for the next interactive request"
    await lab.cancel(talks)
    for each in batch:
        assert isinstance(await lab.end(each), Finished)


async def test_batch_waits_on_the_log_where_another_finds_it(lab):
    first = await lab.generator(RAILBUS_GENERATOR_SLOTS="1")
    await lab.chunk(await lab.ask("simulated-stall1"))
    batch = [await lab.ask("simulated-n10", lane="batch") for _ in range(5)]
    await asyncio.sleep(0.5)
    first.kill()
    await lab.generator()
    await lab.until(lambda: all(lab.events(each, Finished) for each in batch))


async def test_the_engines_failures_are_reported(lab):
    async with running_upstream() as upstream:
        await lab.generator(
            # The timeout is longer than the machine may stall, so that only the silent answer runs into it.
            RAILBUS_ENGINE="openai",
            RAILBUS_UPSTREAM_URL=upstream.address,
            RAILBUS_UPSTREAM_READ_TIMEOUT_MS="8000",
        )
        upstream.script = refuses(503)
        refused = await lab.end(await lab.ask())
        assert (refused.error_class, refused.retryable, refused.last_seq) == ("unavailable", True, -1)
        written = asyncio.Event()
        upstream.script = breaks_off("one ", "two ", when=written)
        asked = await lab.ask()
        await lab.chunk(asked, 1)
        written.set()
        broken = await lab.end(asked)
        assert (broken.error_class, broken.retryable, broken.last_seq) == ("unavailable", True, 1)
        assert "".join(chunk.text for chunk in lab.chunks(asked)) == "one two "
        upstream.script = falls_silent("one ")
        silent = await lab.end(await lab.ask())
        assert (silent.error_class, silent.retryable) == ("timeout", True)
        upstream.script = says("well")
        assert isinstance(await lab.end(await lab.ask()), Finished)


async def test_nothing_of_the_prompt_is_logged(lab, capfd):
    async with running_upstream() as upstream:
        upstream.script = refuses(400, json.dumps({"error": {"message": "bad: Tell me about rivers."}}).encode())
        await lab.generator(RAILBUS_ENGINE="openai", RAILBUS_UPSTREAM_URL=upstream.address, RAILBUS_LOG_LEVEL="DEBUG")
        end = await lab.end(await lab.ask())
        upstream.script = says("The answer")
        await lab.end(await lab.ask())
    assert "rivers" not in end.message
    said = capfd.readouterr().err
    assert "rivers" not in said
    assert "The answer" not in said


async def test_what_is_no_request_does_no_harm(lab):
    await lab.generator()
    value, headers = encode(make_request())
    junk = [
        (b"{", headers), (b"null", headers), (None, headers), (b"\xff" * 100, headers), (value, []),
        (value, [("kind", b"Request"), ("v", b"99")]), (value, [("kind", b"Chunk"), ("v", b"1")]),
        (value.replace(b'"acme"', b'7'), headers),
    ]  # fmt: skip
    async with AIOKafkaProducer(bootstrap_servers=lab.bus.bootstrap) as client:
        for partition in range(2):
            for body, said in junk:
                await client.send_and_wait(REQUESTS.name, body, key=b"x", headers=said, partition=partition)
    for _ in range(4):
        assert isinstance(await lab.end(await lab.ask("simulated-n5")), Finished)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"RAILBUS_ENGINE": "openai"}, "railbus generator: engine openai needs RAILBUS_UPSTREAM_URL"),
        ({"RAILBUS_ENGINE": "gpt"}, "railbus generator: RAILBUS_ENGINE='gpt': must be"),
        ({"RAILBUS_SIM_GPU": "h900"}, "railbus generator: RAILBUS_SIM_GPU, _TARGET, _DRAFT or _PRECISION: GPU 'h900'"),
    ],
)
async def test_a_mistake_in_the_settings_is_one_line(env, message):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.generator",
        env=bare_environment() | {"RAILBUS_ENGINE": "simulated"} | env, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, said = await asyncio.wait_for(process.communicate(), 90)
    assert process.returncode == 2
    assert said.decode().startswith(message)
    assert said.count(b"\n") == 1
