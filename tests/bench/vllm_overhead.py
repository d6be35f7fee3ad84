"""``.venv-vllm/bin/python -m tests.bench.vllm_overhead``: measure how much time Railbus adds to vLLM.

One process runs the engine, the worker and the reader of the stream log. The broker is another process. Half of the
prompts go directly to ``AsyncLLM``. The other half, of the same kind, go through Railbus: request on Kafka, worker,
stream log, reader. The two halves are interleaved. The models are tiny. The engine itself then takes little time, so
the added time is visible.

A second measurement cancels running requests. It measures how soon the engine's slot is free, and how soon the request
that waited for the slot has its first token.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from msgspec.structs import replace

from schemas.requests import Message, Sampling
from schemas.stream import Chunk, Failed, Finished
from services.generator.engines.vllm.engine import VllmEngine
from services.generator.engines.vllm.settings import VllmSettings
from services.generator.settings import GeneratorSettings
from services.worker.worker import WorkerService
from tests.integration.generator.lab import GeneratorLab, make_request
from tests.vllm.models import make_model, nudged, sentence

TOKENS = 64
ROUNDS = 40
CANCELS = 30
PLACES = 4


async def main():
    with tempfile.TemporaryDirectory() as folder:
        target = make_model(Path(folder) / "target", seed=1)
        draft = nudged(target, Path(folder) / "near", seed=2, noise=0.05)
        engine = VllmEngine(
            VllmSettings(
                model_path=target, vllm_draft=draft, vllm_dtype="float32", vllm_kv_gib=0.125, vllm_block_size=32,
                vllm_eager=True, vllm_max_seqs=PLACES,
            )
        )  # fmt: skip
        await engine.start()
        try:
            async with GeneratorLab.opened() as lab:
                ready = asyncio.Event()
                working = asyncio.create_task(
                    WorkerService(GeneratorSettings().worker_config(), lab.bus, engine).run(ready.set)
                )
                await ready.wait()
                await compare(engine, lab)
                await cancels(lab)
                working.cancel()
                await asyncio.gather(working, return_exceptions=True)
        finally:
            await engine.close()


async def compare(engine, lab):
    """Measure vLLM alone and vLLM behind Railbus. Print a table of the times to first token and between steps."""
    direct, piped = [], []
    for n in range(2 * ROUNDS):
        for arm in ("direct", "piped") if n % 2 else ("piped", "direct"):  # A B B A
            content = sentence(2 * n + (arm == "piped"), 24)
            measured = await (through_vllm(engine, content, f"d{n}") if arm == "direct" else through_log(lab, content))
            if n >= 4:  # the first ones warm up
                (direct if arm == "direct" else piped).append(measured)
    print(f"{'':12}{'TTFT p50':>10}{'p99':>8}{'step p50':>10}{'p99':>8}   ms, {len(direct)} answers each")
    rows = []
    for name, measured in (("AsyncLLM", direct), ("pipeline", piped)):
        first = [each[0] for each in measured]
        gaps = [gap for each in measured for gap in each[1]]
        rows.append((centile(first, 50), centile(first, 99), centile(gaps, 50), centile(gaps, 99)))
        print(
            f"{name:12}" + "".join(f"{value:{width}.2f}" for value, width in zip(rows[-1], (10, 8, 10, 8), strict=True))
        )
    print(f"{'added':12}{rows[1][0] - rows[0][0]:10.2f}{'':8}{rows[1][2] - rows[0][2]:10.2f}      bar: 6 and 2")


async def through_vllm(engine, content, name):
    """Return the time to the first output and the times between outputs of ``AsyncLLM``, in milliseconds."""
    prompt = engine._prompt((Message(role="user", content=content),))
    params = engine._vllm.sampling(max_tokens=TOKENS, temperature=0.0)
    begun = time.perf_counter()
    outputs = engine._vllm.engine.generate({"type": "token", "prompt_token_ids": prompt}, params, name)
    times = [(time.perf_counter() - begun) * 1e3 async for _ in outputs]
    return times[0], [later - earlier for earlier, later in pairwise(times)]


async def through_log(lab, content):
    """Return the time to the first chunk and the times between chunks, as the log's reader sees them, in milliseconds.

    The measurement begins before the request is written.
    """
    request = replace(
        make_request(),
        messages=(Message(role="user", content=content),),
        sampling=Sampling(max_tokens=TOKENS, temperature=0.0),
    )
    begun, times, seen = time.perf_counter(), [], len(lab.records)
    await lab.send(request)
    while True:
        await lab.until(lambda: len(lab.records) > seen)  # noqa: B023 - it is awaited here
        now = (time.perf_counter() - begun) * 1e3
        news, seen = lab.records[seen:], len(lab.records)
        for record in news:
            if record.event.request_id == request.request_id and isinstance(record.event, Chunk):
                times.append(now)
            if record.event.request_id == request.request_id and isinstance(record.event, Finished | Failed):
                return times[0], [later - earlier for earlier, later in pairwise(times)]


async def cancels(lab):
    """Measure how soon a ``Cancel`` ends a run, and how soon a waiting request then has a chunk. Print both times.

    Both times begin when the broker has acknowledged the ``Cancel``. Before the ``Cancel``, all slots are taken.
    """
    ended, freed, number = [], [], 0
    while len(freed) < CANCELS:
        running = [await ask(lab, number + place) for place in range(PLACES)]
        for request_id in running:
            await said(lab, request_id)
        waiting = await ask(lab, number + PLACES)
        number += PLACES + 1
        await asyncio.sleep(0.05)
        await lab.cancel(running[0])
        begun = time.perf_counter()
        if not any(lab.events(request_id, Finished) for request_id in running):  # else there was a place before
            await lab.end(running[0])
            over_ms = (time.perf_counter() - begun) * 1e3
            await said(lab, waiting)
            if lab.chunks(waiting):
                ended.append(over_ms)
                freed.append((time.perf_counter() - begun) * 1e3)
        for request_id in (*running, waiting):
            await lab.cancel(request_id)
            await lab.end(request_id)
    for name, values in (("the run's end, which frees its slot", ended), ("the next one's first token", freed)):
        print(f"cancel on the log to {name}: p50 {centile(values, 50):.1f}, p99 {centile(values, 99):.1f} ms")
    print(f"{CANCELS} times; bar for the slot: 50")


async def said(lab, request_id):
    """Wait until the request has a chunk or has ended.

    An answer that is sampled at random may end without a chunk.
    """
    await lab.until(lambda: lab.chunks(request_id) or lab.events(request_id, Finished | Failed))


async def ask(lab, n):
    """Write a request for a long answer, and return its id. ``n`` determines the words of the prompt."""
    request = replace(
        make_request(), messages=(Message(role="user", content=sentence(n, 12)),),
        sampling=Sampling(max_tokens=900, temperature=1.0),
    )  # fmt: skip
    await lab.send(request)
    return request.request_id


def centile(values, percent):
    """Return a percentile of the values, with linear interpolation."""
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
