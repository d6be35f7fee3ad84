"""Run a workload on an engine: ``python -m services.generator.bench``.

The workload is read from standard input, and the result is written to standard output. Both are JSON.
"""

import os
import sys
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from services.generator.bench import resources
from services.generator.bench.driver import Driver
from services.generator.bench.workload import Workload
from services.generator.cores import bind_to_cores
from services.generator.engines import make
from services.generator.settings import GeneratorSettings
from services.runtime import run
from services.runtime.errors import UserError
from services.runtime.settings import PREFIX, load_settings, without_secrets
from services.worker.engine import EngineError


async def main() -> None:
    try:
        workload = msgspec.json.decode(sys.stdin.buffer.read(), type=Workload)
    except msgspec.DecodeError as error:
        raise UserError(
            f"standard input is not a workload: {error}; run `railbus bench engine`, which writes one"
        ) from None
    about = load_settings(GeneratorSettings, {**os.environ, f"{PREFIX}ENGINE": workload.engine})
    bind_to_cores(about.generator_cores)
    engine = make(about.engine, os.environ)
    began = time.monotonic()
    try:
        await engine.start()
        ready_s = time.monotonic() - began
        driver = Driver(engine, workload)
        try:
            await driver.warm_up()
        except EngineError as error:
            raise UserError(str(error)) from None
        started = {"engine": engine.name, "model": engine.model, "ready_s": round(ready_s, 3)}
        result = started | await _measure(driver, workload)
    finally:
        await engine.close()
    sys.stdout.buffer.write(msgspec.json.encode(result) + b"\n")
    sys.stdout.flush()


async def _measure(driver: Driver, workload: Workload) -> dict[str, Any]:
    began, cpu, busy = time.monotonic(), resources.cpu_seconds(), resources.busy_seconds()
    streams = []
    for stream in workload.streams:
        about = {"cache": stream.cache, "rate": stream.rate, "prompt": stream.prompt}
        streams.append(about | {"requests": await driver.stream(stream)})
    sets = await driver.cells(workload.cells)
    samples = []
    for loop in workload.samples:
        about_loop = {"at_once": loop.at_once, "output": loop.output}
        samples.append(about_loop | {"requests": await driver.sample(loop)})
    spent, all_spent = _since(cpu, resources.cpu_seconds()), _since(busy, resources.busy_seconds())
    return {
        "settings": settings(os.environ),
        "machine": resources.machine(),
        "cells": [
            {"batch": cell.batch, "prompt": cell.prompt, "sets": found}
            for cell, found in zip(workload.cells, sets, strict=True)
        ],
        "streams": streams,
        "samples": samples,
        "cut": driver.over,
        "wall_s": round(time.monotonic() - began, 3),
        "cpu_s": spent,
        "others_s": None if spent is None or all_spent is None else max(0.0, round(all_spent - spent, 3)),
        "memory_mib": resources.peak_mib(),
        "gpu_mib": resources.gpu_mib(),
    }


def _since(before: float | None, now: float | None) -> float | None:
    return None if before is None or now is None else round(now - before, 3)


def settings(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables ``RAILBUS_*`` without secrets."""
    return without_secrets({name: value for name, value in sorted(env.items()) if name.startswith(PREFIX)})


if __name__ == "__main__":
    run(main, "bench")
