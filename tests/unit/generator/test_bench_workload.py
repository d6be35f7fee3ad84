"""Test a benchmark's prompts: the seed determines them, and only prompts for a warm cache have the same beginning."""

import itertools
import os
import statistics

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.stream import Usage
from services.generator.bench import resources
from services.generator.bench.__main__ import settings
from services.generator.bench.record import RequestRecord
from services.generator.bench.workload import (
    REPEAT_INSTRUCTION,
    SHARED_PREFIX_SHARE,
    OpenLoop,
    Workload,
    arrivals_s,
    prompts,
    shared_prefix,
)
from services.worker.engine import EngineStep, GenerationResult

streams = st.builds(
    OpenLoop,
    cache=st.sampled_from(["cold", "warm"]),
    rate=st.floats(0.1, 100),
    requests=st.integers(1, 20),
    prompt=st.integers(300, 600),
)


@given(streams, st.integers(0, 9))
def test_the_same_seed_gives_the_same_requests(stream, seed):
    assert list(prompts(stream, seed)) == list(prompts(stream, seed))
    assert list(arrivals_s(stream, seed)) == list(arrivals_s(stream, seed))
    assert len(list(prompts(stream, seed))) == len(list(arrivals_s(stream, seed))) == stream.requests
    assert list(prompts(stream, seed)) != list(prompts(stream, seed + 1))


@given(streams, st.integers(0, 9))
def test_prompts_are_as_long_as_asked_for(stream, seed):
    for text in prompts(stream, seed):
        assert len(text) / 4 == pytest.approx(stream.prompt, abs=3)
        assert text.endswith(REPEAT_INSTRUCTION)


@given(st.integers(300, 600), st.integers(2, 10), st.integers(0, 9))
def test_warm_prompts_begin_alike_and_cold_ones_do_not(tokens, requests, seed):
    warm, cold = (OpenLoop(cache=c, rate=1, requests=requests, prompt=tokens) for c in ("warm", "cold"))
    beginning = shared_prefix(tokens, seed)
    assert len(beginning) / 4 == pytest.approx(tokens * SHARED_PREFIX_SHARE, abs=1)
    assert all(text.startswith(beginning) for text in prompts(warm, seed))
    assert len({text[:20] for text in prompts(cold, seed)}) == requests


def test_arrivals_are_a_poisson_process():
    stream = OpenLoop(cache="cold", rate=5, requests=2_000, prompt=10)
    times = list(arrivals_s(stream, 3))
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert statistics.mean(gaps) == pytest.approx(1 / 5, rel=0.08)
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize(
    "wrong",
    [{"output": 1}, {"cells": [{"batch": 0, "prompt": 1, "repeats": 1}]}, {"seed": -1}, {"limit_s": 0}, {"more": 1}],
)
def test_a_workload_that_makes_no_sense_is_refused(wrong):
    sense = {
        "engine": "simulated", "cells": [], "streams": [], "output": 9, "temperature": 0, "seed": 1, "request_s": 9,
        "limit_s": 9,
    }  # fmt: skip
    assert msgspec.json.decode(msgspec.json.encode(sense), type=Workload).output == 9
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode(sense | wrong), type=Workload)


def test_a_record_counts_steps_that_have_tokens():
    record = RequestRecord(due_ms=0)
    for item, now in (
        (EngineStep(text="a", tokens=2), 5.0),
        (EngineStep(text="b", tokens=0), 6.0),
        (EngineStep(text="c"), 7.0),
    ):
        record.add(item, now)
    record.add(GenerationResult(finish_reason="stop", usage=Usage(prompt_tokens=3, completion_tokens=3)), 8.0)
    assert record.steps == [(5.0, 2), (7.0, 1)]
    assert record.usage.prompt_tokens == 3


def test_what_this_process_uses():
    before = resources.cpu_seconds()
    sum(range(3_000_000))
    assert resources.cpu_seconds() >= before
    assert resources.peak_mib() > 5
    assert resources.busy_seconds() > 0
    assert resources.machine()["cpus"] == os.cpu_count()


def test_secrets_are_not_repeated():
    told = settings({"RAILBUS_UPSTREAM_KEY": "s3cret", "RAILBUS_MODEL": "m", "HOME": "/x"})
    assert told == {"RAILBUS_MODEL": "m", "RAILBUS_UPSTREAM_KEY": "(set)"}
    told = settings({"RAILBUS_UPSTREAM_URL": "http://me:secret@host:1/v1"})
    assert told == {"RAILBUS_UPSTREAM_URL": "http://host:1/v1"}
