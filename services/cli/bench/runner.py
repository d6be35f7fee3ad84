import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from services.cli.bench.arms import BenchArm
from services.cli.program import command
from services.runtime.errors import UserError
from services.runtime.process import passing_sigterm_to
from services.runtime.settings import without_secrets

RESULT_VERSION: Final = 1
LOAD_TIMEOUT_S: Final = 900.0
"""Maximum time for an engine to load, in addition to the time limit of its run."""
STOP_TIMEOUT_S: Final = 10.0
MIN_RUN_S: Final = 1.0
"""Time that all remaining runs together get if the earlier runs have left less than this, because every arm must
run."""


class BenchRunError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def measure(order: Sequence[BenchArm], workload: dict[str, Any], limit_s: float) -> list[dict[str, Any]]:
    """Run the arms one after another and return their results.

    ``limit_s`` is the time for all runs together. The time to load models does not count.

    Raises:
        BenchRunError: A run failed.
        KeyboardInterrupt: SIGTERM came. It has also ended the engine.
        UserError: A run did not end in time, or wrote no result.
    """
    left, runs = limit_s, []
    for number, arm in enumerate(order):
        share = left / (len(order) - number)
        sys.stderr.write(f"run {number + 1} of {len(order)}: {arm.name}, at most {share:.0f} s once it is loaded\n")
        measured = _run(arm, workload | {"limit_s": share})
        runs.append({"arm": arm.name, "measured": measured})
        left = max(MIN_RUN_S, left - measured["wall_s"])
    return runs


def write_result(
    path: Path, arms: Sequence[BenchArm], workload: Mapping[str, Any], runs: object, catalogue: object
) -> None:
    result = {
        "version": RESULT_VERSION,
        "workload": workload,
        "arms": {arm.name: {"gamma": arm.gamma, "env": without_secrets(arm.env)} for arm in arms},
        "catalogue": catalogue,
        "runs": runs,
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"--out {path}: cannot be written ({error.strerror})") from None


def _run(arm: BenchArm, workload: Mapping[str, Any]) -> Any:
    process = subprocess.Popen(  # noqa: S603 - our own program, no shell
        command("services.generator.bench"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **arm.env},
    )
    longest = LOAD_TIMEOUT_S + workload["limit_s"] + workload["request_s"]
    try:
        with passing_sigterm_to(process) as received:
            output, _ = process.communicate(json.dumps(workload).encode(), timeout=longest)
    except subprocess.TimeoutExpired:
        raise UserError(f"the run of {arm.name} did not end within {longest:.0f} s and was stopped") from None
    finally:
        _end(process)
    if received:
        raise KeyboardInterrupt
    if process.returncode != 0:
        raise BenchRunError(process.returncode)
    try:
        return json.loads(output)
    except ValueError:
        raise UserError(f"the run of {arm.name} wrote no result") from None


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
