"""Test what happens to requests when their generator stops, dies or loses the broker, or when a second one joins."""

import asyncio
import urllib.request

from schemas.stream import Finished
from tests.integration.generator.lab import GeneratorLab
from tests.support.processes import free_port


async def test_a_graceful_end_finishes_what_runs_and_hands_back_what_waits(lab):
    first = await lab.generator(RAILBUS_GENERATOR_SLOTS="1", RAILBUS_SIM_TIME_SCALE="2", RAILBUS_SIM_DRAFT="none")
    runs = await lab.ask("simulated-n300")  # takes 8 s, and may take 20 from the stop on
    await lab.chunk(runs, 1)
    waits = [await lab.ask("simulated-n10") for _ in range(6)]
    batch = [await lab.ask("simulated-n10", lane="batch") for _ in range(2)]
    await asyncio.sleep(0.5)
    assert not lab.events(runs, Finished), "the answer must be long enough to be interrupted"
    stopping = asyncio.create_task(first.stop())
    await lab.generator()
    ends = [await lab.end(asked) for asked in (runs, *waits, *batch)]
    assert all(isinstance(end, Finished) for end in ends), ends
    assert len({end.source for end in ends[1:]}) == 1
    assert ends[0].source != ends[1].source
    assert await stopping == 0
    for asked in (runs, *waits, *batch):
        assert len(lab.check(asked)) == 1, "nothing ran twice"


async def test_what_cannot_finish_in_time_fails_so_that_another_tries_it(lab):
    process = await lab.generator(RAILBUS_GENERATOR_SLOTS="1", RAILBUS_GENERATOR_DRAIN_MS="300")
    runs = await lab.ask("simulated-stall2")
    await lab.chunk(runs, 1)
    waits = await lab.ask()
    await asyncio.sleep(0.5)
    assert await process.stop() == 0
    end = await lab.end(runs)
    assert (end.error_class, end.retryable, end.last_seq) == ("engine_dead", True, 1)
    assert end.message == "the worker stopped before the answer was complete"
    assert not lab.events(waits)


async def test_a_cancel_reaches_an_answer_that_may_still_finish(lab):
    process = await lab.generator()
    runs = await lab.ask("simulated-stall2")
    await lab.chunk(runs, 1)
    stopping = asyncio.create_task(process.stop())
    await asyncio.sleep(0.5)
    await lab.cancel(runs)
    assert (await lab.end(runs)).error_class == "cancelled"
    assert await stopping == 0


async def test_what_a_killed_one_had_not_begun_is_taken_up_by_the_next(lab):
    first = await lab.generator(RAILBUS_GENERATOR_SLOTS="1")
    begun = await lab.ask("simulated-stall1")
    await lab.chunk(begun)
    waits = [await lab.ask("simulated-n10") for _ in range(5)]
    await lab.begun_for_good(begun)
    await asyncio.sleep(0.5)
    first.kill()
    await lab.generator()
    for asked in waits:
        assert isinstance(await lab.end(asked), Finished)
        assert len(lab.check(asked)) == 1
    assert len(lab.check(begun)) == 1, "what was begun is the router's to decide about"


async def test_a_second_generator_takes_what_waits_in_its_partitions(lab):
    """A second generator answers waiting requests of the partitions that it gets. No request is answered twice."""
    members = {"RAILBUS_KAFKA_SESSION_TIMEOUT_MS": "20000"}  # neither loses its partition because the machine stalls
    await lab.generator(RAILBUS_GENERATOR_SLOTS="1", **members)
    runs = await lab.ask("simulated-stall1")
    await lab.chunk(runs)
    waits = [await lab.ask("simulated-n10") for _ in range(20)]
    await asyncio.sleep(0.3)
    await lab.generator(**members)
    await lab.until(lambda: sum(bool(lab.events(each, Finished)) for each in waits) >= 1)
    await lab.cancel(runs)
    for asked in waits:
        assert isinstance(await lab.end(asked), Finished)
        assert len(lab.check(asked)) == 1
    assert len({lab.events(asked)[0].source for asked in waits}) == 2


async def test_it_is_not_ready_while_it_stops_or_the_broker_is_away():
    async with GeneratorLab.opened(keep_log=True) as lab:
        port = free_port()
        process = await lab.generator(RAILBUS_HEALTH_PORT=str(port))
        await becomes(port, ready=True)
        assert await asyncio.to_thread(lab.broker.stop) == 0
        await becomes(port, ready=False)
        lab.broker.launch()
        await asyncio.to_thread(lab.broker.wait_until_ready)
        await becomes(port, ready=True)
        runs = await lab.ask("simulated-stall1")
        await lab.chunk(runs)
        stopping = asyncio.create_task(process.stop())
        await becomes(port, ready=False)
        assert process.running, "it waits for its answer"
        await lab.cancel(runs)
        assert await stopping == 0


async def is_ready(port):
    def get():
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    return await asyncio.to_thread(get)


async def becomes(port, *, ready):
    async with asyncio.timeout(60):
        while await is_ready(port) is not ready:  # noqa: ASYNC110 - another process decides
            await asyncio.sleep(0.1)


async def test_a_dead_engine_ends_the_process(lab):
    process = await lab.generator()
    others = [await lab.ask("simulated-stall1") for _ in range(3)]
    for each in others:
        await lab.chunk(each)
    dying = await lab.ask("simulated-dead2")
    assert await process.ended() == 1
    for asked in (dying, *others):
        end = await lab.end(asked)
        assert (end.error_class, end.retryable) == ("engine_dead", True)


async def test_killed_and_restarted_it_writes_nothing_twice(lab):
    first = await lab.generator(RAILBUS_SIM_TIME_SCALE="8")  # no answer takes less than 20 s
    asked = [await lab.ask("simulated-n400") for _ in range(20)]
    for each in asked:
        await lab.chunk(each, 2)
    await lab.begun_for_good(*asked)
    first.kill()
    await lab.generator()
    after = [await lab.ask("simulated-n20") for _ in range(5)]
    for each in after:
        assert isinstance(await lab.end(each), Finished)
    for each in asked:
        assert len(lab.check(each)) == 1, "accepted once: another attempt is the router's decision"
    assert not any(lab.events(each, Finished) for each in asked)


async def test_one_of_two_goes_and_the_other_takes_over(lab):
    first = await lab.generator()
    await lab.generator()
    sources = set()
    async with asyncio.timeout(60):
        while len(sources) < 2:  # they share the partitions, once the second has got one of the first's
            sources.add((await lab.end(await lab.ask("simulated-n10"))).source)
    assert await first.stop() == 0
    asked = [await lab.ask("simulated-n10") for _ in range(10)]
    sources = {(await lab.end(each)).source for each in asked}
    assert len(sources) == 1


async def test_a_broker_that_is_away_for_a_while_tears_nothing(tmp_path):
    async with GeneratorLab.opened(keep_log=True) as lab:
        await lab.generator(RAILBUS_SIM_TIME_SCALE="2", RAILBUS_SIM_DRAFT="none")
        asked = [await lab.ask("simulated-n120") for _ in range(5)]
        for each in asked:
            await lab.chunk(each, 10)
        await lab.restart_broker(away_s=0.7)
        for each in asked:
            end = await lab.end(each)
            assert isinstance(end, Finished)
            assert len({chunk.seq for chunk in lab.chunks(each)}) == end.last_seq + 1
        assert isinstance(await lab.end(await lab.ask("simulated-n5")), Finished)
