"""``python -m services.generator.bench``: one run. The workload comes on standard input, the result goes to output."""

import os
import sys
import time
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import orjson

from services.generator.bench import usage
from services.generator.bench.loops import Driver
from services.generator.bench.workload import Workload
from services.generator.engines import make
from services.generator.settings import GeneratorSettings
from services.runtime import run
from services.runtime.errors import UserError
from services.runtime.settings import PREFIX, load
from services.worker.engine import EngineError

_SECRET: Final = ("KEY", "TOKEN", "PASSWORD", "SECRET")


async def main() -> None:
    """Starts the engine, drives it, writes one JSON object.

    Raises:
        UserError: The workload is none, the engine cannot start, or its first request failed.
    """
    try:
        workload = msgspec.json.decode(sys.stdin.buffer.read(), type=Workload)
    except msgspec.DecodeError as error:
        raise UserError(f"standard input is no workload: {error}; `railbus bench engine` writes one") from None
    engine = make(load(GeneratorSettings, {**os.environ, f"{PREFIX}ENGINE": workload.engine}).engine, os.environ)
    began = time.monotonic()
    try:
        await engine.start()
        ready_s = time.monotonic() - began
        driver = Driver(engine, workload)
        try:
            await driver.warm_up()
        except EngineError as error:
            raise UserError(str(error)) from None
        said = {"engine": engine.name, "model": engine.model, "ready_s": round(ready_s, 3)}
        result = said | await _measure(driver, workload)
    finally:
        await engine.close()
    sys.stdout.buffer.write(orjson.dumps(result) + b"\n")
    sys.stdout.flush()


async def _measure(driver: Driver, workload: Workload) -> dict[str, Any]:
    began, cpu, busy = time.monotonic(), usage.cpu_seconds(), usage.busy_seconds()
    streams = []
    for stream in workload.streams:
        about = {"cache": stream.cache, "rate": stream.rate, "prompt": stream.prompt}
        streams.append(about | {"requests": await driver.stream(stream)})
    sets = await driver.cells(workload.cells)
    spent, all_spent = _since(cpu, usage.cpu_seconds()), _since(busy, usage.busy_seconds())
    return {
        "settings": settings(os.environ),
        "machine": usage.machine(),
        "cells": [
            {"batch": cell.batch, "prompt": cell.prompt, "sets": found}
            for cell, found in zip(workload.cells, sets, strict=True)
        ],
        "streams": streams,
        "cut": driver.over,
        "wall_s": round(time.monotonic() - began, 3),
        "cpu_s": spent,
        "others_s": None if spent is None or all_spent is None else max(0.0, round(all_spent - spent, 3)),
        "memory_mib": usage.peak_mib(),
        "gpu_mib": usage.gpu_mib(),
    }


def _since(before: float | None, now: float | None) -> float | None:
    return None if before is None or now is None else round(now - before, 3)


def settings(env: Mapping[str, str]) -> dict[str, str]:
    """What this process was told, secrets left out: two runs are compared only where it says the same."""
    return {
        name: "(set)" if name.endswith(_SECRET) else value
        for name, value in sorted(env.items())
        if name.startswith(PREFIX)
    }


if __name__ == "__main__":
    run(main, "bench")
