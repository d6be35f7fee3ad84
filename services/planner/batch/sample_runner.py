"""Run a sample of prompts on an engine that is started in a subprocess."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import orjson

from services.planner.bench.results import RunMeasurements, SampleResult
from services.runtime.errors import UserError
from services.runtime.process import EXIT_INTERRUPTED, passing_sigterm_to

LOAD_S: Final = 900.0
"""Maximum time for an engine to load, in seconds."""


def run_loops(
    engine: str,
    loops: Sequence[tuple[int, int, Sequence[str]]],
    *,
    limit_s: float,
    request_s: float,
    env: Mapping[str, str] | None = None,
) -> tuple[SampleResult, ...]:
    """Start an engine in a subprocess, and run several closed loops on it, one after the other.

    Args:
        engine: Name of the engine.
        loops: For each loop, the number of concurrent requests, the maximum number of tokens of an answer, and the
            prompts.
        limit_s: Time in seconds after which no further request is sent.
        request_s: Timeout of a request, in seconds.
        env: Additional environment variables of the subprocess.

    Raises:
        UserError: The engine failed or took too long, or its result cannot be read.
        SystemExit: SIGTERM came. It has also ended the engine.
    """
    workload: dict[str, Any] = {
        "engine": engine, "cells": [], "streams": [], "output": loops[0][1], "temperature": 0.0, "seed": 1,
        "request_s": request_s, "limit_s": limit_s,
        "samples": [
            {"at_once": at_once, "output": output, "prompts": list(prompts)} for at_once, output, prompts in loops
        ],
    }  # fmt: skip
    command = [sys.executable, "-P", "-m", "services.generator.bench"]
    with (
        subprocess.Popen(  # noqa: S603 - our own program, no shell
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **(env or {})}
        ) as process,
        passing_sigterm_to(process) as received,
    ):
        try:
            output, _ = process.communicate(orjson.dumps(workload), timeout=LOAD_S + limit_s + request_s)
        except subprocess.TimeoutExpired as error:
            raise UserError(f"the sample did not end within {error.timeout:.0f} s and was stopped") from None
        finally:
            process.kill()  # has no effect if it ended by itself
    if received:
        raise SystemExit(EXIT_INTERRUPTED)
    if process.returncode != 0:
        raise UserError(f"the sample did not run: engine {engine} ended with exit code {process.returncode}, see above")
    try:
        return msgspec.json.decode(output, type=RunMeasurements).samples
    except msgspec.DecodeError as error:
        raise UserError(f"the sample's result cannot be read: {error}") from None
