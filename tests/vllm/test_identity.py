"""Test that greedy answers are the same with every drafting method, and that prompts share cached prefixes."""

import asyncio

import pytest

from schemas.requests import Message, Sampling
from services.generator.engines import make
from services.worker.engine import EngineError, EngineStep, GenerationResult, Job
from tests.vllm.models import sentence

PROMPTS = 56
TOKENS = 48
PATIENCE_S = 120

DRAFTERS = {
    "ngram": {"RAILBUS_VLLM_METHOD": "ngram"},
    "ngram, by batch": {
        "RAILBUS_VLLM_METHOD": "ngram",
        "RAILBUS_VLLM_SPECULATIVE_TOKENS_BY_BATCH": "1-10:4 11-16:0",
    },
    "itself": {"RAILBUS_VLLM_DRAFT": "target"},
    "another": {"RAILBUS_VLLM_DRAFT": "near"},
    "a stranger, by batch": {"RAILBUS_VLLM_DRAFT": "far", "RAILBUS_VLLM_SPECULATIVE_TOKENS_BY_BATCH": "1-4:5 5-16:2"},
}


def job(content, run, **sampling):
    return Job(
        request_id=run, run=run, model="m", messages=(Message(role="user", content=content),),
        sampling=Sampling(**{"max_tokens": TOKENS, "temperature": 0, **sampling}),
    )  # fmt: skip


async def answered(engine, asked):
    async with asyncio.timeout(PATIENCE_S):
        return [item async for item in engine.generate(asked)]


def text_of(items):
    return "".join(item.text for item in items if isinstance(item, EngineStep))


async def answers(engine):
    asked = [job(sentence(n, 8 + n), f"r{n}") for n in range(PROMPTS)]
    return await asyncio.gather(*(answered(engine, each) for each in asked))


class Plain:
    """The target's answers without a drafter. ``test_alone`` sets them, and other tests compare with them."""

    answers = None


@pytest.fixture(scope="module")
def plain():
    return Plain()


def check_sums(items, *, drafts):
    """Check that the steps of an answer add up to the totals in its result. ``drafts``: whether a drafter was used."""
    *steps, done = items
    assert isinstance(done, GenerationResult)
    assert sum(step.tokens for step in steps) == done.usage.completion_tokens
    if not drafts:
        assert done.speculation is None
        assert all(step.drafted == step.accepted == 0 for step in steps)
        return
    told = done.speculation
    assert told.accepted == sum(told.accepted_by_position) <= told.drafted
    assert list(told.accepted_by_position) == sorted(told.accepted_by_position, reverse=True)
    assert sum(step.accepted for step in steps) >= told.accepted
    assert all(step.accepted <= step.drafted for step in steps)
    first = steps[0]  # if the consumer is slow, one item has several steps
    assert first.drafted == 0 or first.tokens > 1, "the first token comes from the prompt"


@pytest.mark.core
async def test_alone(models, settings, plain):
    engine = make("vllm", settings | {"RAILBUS_MODEL_PATH": str(models["target"])})
    assert (engine.name, engine.model, engine.capacity) == ("vllm", "target", 16)
    await engine.start()
    try:
        plain.answers = await answers(engine)
        for items in plain.answers:
            check_sums(items, drafts=False)
        assert len({text_of(items) for items in plain.answers}) > PROMPTS // 2, "the models do say something"
        await batching_changes_nothing(engine, plain)
        await beginnings_are_shared(engine)
        await bounds(engine)
        await unknown_models_are_refused(engine)
        await an_abort_frees_its_place(engine)
    finally:
        await engine.close()


async def batching_changes_nothing(engine, plain):
    for n in (0, 17, 55):
        assert text_of(await answered(engine, job(sentence(n, 8 + n), f"again{n}"))) == text_of(plain.answers[n])


async def beginnings_are_shared(engine):
    prompt = sentence(500, 200)
    first, second = [(await answered(engine, job(prompt, run)))[-1] for run in ("first", "second")]
    assert first.usage.cached_tokens == 0
    assert second.usage.cached_tokens >= 192, "whole blocks of 32 tokens"
    assert first.usage.prompt_tokens == second.usage.prompt_tokens > 200
    assert first.timings.prefill_ms > 0
    assert first.timings.decode_ms > 0


async def bounds(engine):
    cut = (await answered(engine, job(sentence(3, 900), "cut", max_tokens=500)))[-1]
    assert cut.usage.prompt_tokens + cut.usage.completion_tokens <= 1024, "the context's end is the answer's"
    with pytest.raises(EngineError, match=r"the prompt is too long: \d+ tokens, the limit is 1024 tokens") as caught:
        await answered(engine, job(sentence(4, 1_100), "long"))
    assert (caught.value.error_class, caught.value.retryable) == ("bad_request", False)
    system_last = (Message(role="user", content="da"), Message(role="system", content="bo"))
    asked = Job(request_id="r", run="r", model="m", messages=system_last, sampling=Sampling())
    with pytest.raises(EngineError, match="chat template refuses this conversation") as caught:
        await answered(engine, asked)
    assert caught.value.error_class == "bad_request"
    words = text_of(await answered(engine, job(sentence(2, 10), "whole"))).split()
    stopped = await answered(engine, job(sentence(2, 10), "stopped", stop=(words[6],)))
    assert words[6] not in text_of(stopped).split()
    assert stopped[-1].finish_reason == "stop"


async def unknown_models_are_refused(engine):
    assert engine.resolve("default") == engine.resolve("target") == "target"
    with pytest.raises(EngineError, match="not served here; served is 'target'") as caught:
        engine.resolve("gpt-9")
    assert (caught.value.error_class, caught.value.param) == ("bad_request", "model")


async def an_abort_frees_its_place(engine):
    items = engine.generate(job(sentence(1, 10), "gone", max_tokens=900))
    for _ in range(3):
        await anext(items)
    assert engine.stats().running == 1
    await items.aclose()
    assert engine.stats().running == 0
    task = asyncio.create_task(answered(engine, job(sentence(1, 10), "gone too", max_tokens=900)))
    while not engine.stats().running:  # noqa: ASYNC110 - the engine has no event for it
        await asyncio.sleep(0.005)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert engine.stats().running == 0


@pytest.mark.parametrize(
    "drafter", [pytest.param(name, marks=pytest.mark.core if name == "another" else ()) for name in DRAFTERS]
)
async def test_however_it_is_drafted(drafter, models, settings, plain, record_property):
    chosen = {name: str(models.get(value, value)) for name, value in DRAFTERS[drafter].items()}
    engine = make("vllm", settings | {"RAILBUS_MODEL_PATH": str(models["target"])} | chosen)
    await engine.start()
    try:
        drafted = await answers(engine)
    finally:
        await engine.close()
    same = [n for n in range(PROMPTS) if text_of(drafted[n]) == text_of(plain.answers[n])]
    assert len(same) == PROMPTS
    for items in drafted:
        check_sums(items, drafts=True)
    totals = [items[-1].speculation for items in drafted]
    rate = sum(each.accepted for each in totals) / sum(each.drafted for each in totals)
    print(f"{drafter}: {len(same)}/{PROMPTS} identical, {rate:.0%} of {sum(t.drafted for t in totals)} drafts kept")
    assert {"ngram": 0.02, "itself": 0.9, "another": 0.3}.get(drafter, 0) < rate
