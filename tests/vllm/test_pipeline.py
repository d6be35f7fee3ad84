"""Test a generator process with vLLM, from a request on the broker to the events on the stream log."""

import asyncio
import re
import urllib.request

import psutil
import pytest
import pytest_asyncio
from msgspec.structs import replace

from schemas.requests import Message, Sampling
from schemas.stream import Chunk, Failed, Finished, Started
from tests.integration.generator.lab import GeneratorLab, make_request
from tests.support import processes
from tests.support.processes import free_port
from tests.vllm.models import sentence

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.core]

STARTING_S = 240
"""Time that a generator may take to start, in seconds. The generator and its child both import vLLM, which takes a
minute on a busy machine."""


class Served:
    """A lab with one running generator. The generator runs vLLM with a drafter and four slots."""

    def __init__(self, lab, process, health):
        self.lab, self.process, self.health = lab, process, health

    async def ask(self, n, *, tokens=40, lane="interactive"):
        request = replace(
            make_request(lane=lane),
            messages=(Message(role="user", content=sentence(n, 12)),),
            sampling=Sampling(max_tokens=tokens, temperature=0.0),
        )
        await self.lab.send(request)
        return request.request_id

    def metric(self, pattern):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.health}/metrics", timeout=10) as response:
            text = response.read().decode()
        line = re.compile(rf"^{pattern}(?:\{{[^}}]*\}})? ([\d.e+-]+)$", re.MULTILINE)
        return sum(float(found[1]) for found in line.finditer(text))

    def engines(self):
        """Return the processes of vLLM that the generator has started."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        return [child for child in children if "resource_tracker" not in " ".join(child.cmdline())]


@pytest.fixture(scope="module", autouse=True)
def patience():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "START_TIMEOUT_S", STARTING_S)
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(models, settings):
    async with GeneratorLab.opened() as lab:
        health = free_port()
        process = await lab.generator(
            **settings
            | {
                "RAILBUS_ENGINE": "vllm",
                "RAILBUS_MODEL_PATH": str(models["endless"]),
                "RAILBUS_VLLM_DRAFT": str(models["endless_near"]),
                "RAILBUS_VLLM_MAX_SEQS": "4",
                "RAILBUS_HEALTH_PORT": str(health),
            }
        )
        yield Served(lab, process, health)


async def test_an_answer_is_streamed_step_by_step(served):
    lab = served.lab
    assert lab.ready_line == "generator engine=vllm model=endless"
    request_id = await served.ask(1)
    end = await lab.end(request_id)
    lab.check(request_id)
    started, *chunks, finished = lab.events(request_id)
    assert isinstance(started, Started)
    assert (started.engine, started.model) == ("vllm", "endless")
    assert finished is end
    assert isinstance(finished, Finished)
    assert all(isinstance(chunk, Chunk) for chunk in chunks)
    assert len(chunks) < finished.usage.completion_tokens == sum(chunk.tokens for chunk in chunks)
    told = finished.speculation
    assert told.drafted >= told.accepted > 0 < told.steps
    assert len(told.accepted_by_position) == 4
    assert sum(chunk.accepted for chunk in chunks) >= told.accepted
    assert finished.timings.prefill_ms > 0 < finished.timings.decode_ms
    assert finished.usage.prompt_tokens > 12


async def test_answers_share_steps_and_say_the_same(served):
    lab = served.lab
    alone = await served.ask(2)
    await lab.end(alone)
    together = [await served.ask(2) for _ in range(4)]
    for request_id in together:
        await lab.end(request_id)
        lab.check(request_id)

    def text(request_id):
        return "".join(chunk.text for chunk in lab.chunks(request_id))

    assert {text(request_id) for request_id in together} == {text(alone)}
    order = [record.event for record in lab.records if record.event.request_id in together]
    ends = [n for n, event in enumerate(order) if isinstance(event, Finished)]
    begun = {event.request_id for event in order[: ends[0]] if isinstance(event, Chunk)}
    assert len(begun) == 4, "all four spoke before the first was through"


async def test_a_cancel_frees_the_place_at_once(served):
    lab = served.lab
    request_id = await served.ask(3, tokens=900)
    await lab.chunk(request_id, 2)
    await lab.cancel(request_id)
    end = await lab.end(request_id)
    assert isinstance(end, Failed)
    assert end.error_class == "cancelled"
    async with asyncio.timeout(10):
        while served.metric("vllm:num_requests_running"):  # noqa: ASYNC110 - it is another process
            await asyncio.sleep(0.05)
    assert sum(chunk.tokens for chunk in lab.chunks(request_id)) < 900


async def test_people_go_before_batches(served):
    lab = served.lab
    batch = [await served.ask(10 + n, tokens=200, lane="batch") for n in range(12)]
    await lab.chunk(batch[0])
    person = await served.ask(4)
    await lab.end(person)
    ended = [event.request_id for record in lab.records if isinstance(event := record.event, Finished)]
    assert sum(request_id in ended for request_id in batch) < len(batch), "the person did not wait for the batch"
    for request_id in batch:
        end = await lab.end(request_id)
        assert isinstance(end, Finished)
        assert end.usage.completion_tokens == 200


async def test_its_own_metrics_are_served(served):
    await served.lab.end(await served.ask(1))
    assert served.metric("railbus_generator_accepted_tokens_total") > 0
    assert served.metric("vllm:spec_decode_num_accepted_tokens_total") > 0
    assert served.metric("vllm:spec_decode_num_draft_tokens_total") >= served.metric(
        "vllm:spec_decode_num_accepted_tokens_total"
    )
    assert served.metric("vllm:prefix_cache_queries_total") > 0


async def test_when_the_engine_dies_every_open_answer_says_so(served):
    """If vLLM's processes die, every open answer fails. This test must run last, because the generator then exits."""
    lab = served.lab
    open_ones = [await served.ask(20 + n, tokens=900) for n in range(3)]
    for request_id in open_ones:
        await lab.chunk(request_id)
    engines = served.engines()
    assert engines
    for engine in engines:
        engine.kill()
    for request_id in open_ones:
        end = await lab.end(request_id)
        assert isinstance(end, Failed)
        assert (end.error_class, end.retryable) == ("engine_dead", True)
        lab.check(request_id)
    assert await served.process.ended() == 1
