"""Runs the arms of a bench, each in a process of its own, and keeps what they measured."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from services.cli.arms import Arm
from services.runtime.errors import UserError

VERSION: Final = 1
START_S: Final = 900.0
"""Longest time an engine may take to load, beyond its share of the limit."""
END_S: Final = 10.0
LEAST_S: Final = 1.0
"""Left for the last runs when the ones before took longer than their share: every arm must run."""


class Failed(Exception):
    """A run ended without a result; it has said why.

    Attributes:
        code: Its exit code.
    """

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def measure(order: Sequence[Arm], workload: dict[str, Any], limit_s: float) -> list[dict[str, Any]]:
    """One run after another; what is left of the time is shared out evenly. Loading an engine does not count.

    Raises:
        Failed: A run did.
        UserError: A run did not end.
    """
    left, runs = limit_s, []
    for number, arm in enumerate(order):
        share = left / (len(order) - number)
        sys.stderr.write(f"run {number + 1} of {len(order)}: {arm.name}, at most {share:.0f} s once it is loaded\n")
        measured = _run(arm, workload | {"limit_s": share})
        runs.append({"arm": arm.name, "measured": measured})
        left = max(LEAST_S, left - measured["wall_s"])
    return runs


def keep(path: Path, arms: Sequence[Arm], workload: Mapping[str, Any], runs: object, catalogue: object) -> None:
    """Writes the result.

    Raises:
        UserError: The file cannot be written.
    """
    result = {
        "version": VERSION,
        "workload": workload,
        "arms": {arm.name: {"gamma": arm.gamma, "env": dict(arm.env)} for arm in arms},
        "catalogue": catalogue,
        "runs": runs,
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"--out {path}: cannot be written ({error.strerror})") from None


def _run(arm: Arm, workload: Mapping[str, Any]) -> Any:
    command = [sys.executable, "-m", "services.generator.bench"]
    process = subprocess.Popen(  # noqa: S603 - our own program, no shell
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **arm.env}
    )
    longest = START_S + workload["limit_s"] + workload["request_s"]
    try:
        said, _ = process.communicate(json.dumps(workload).encode(), timeout=longest)
    except subprocess.TimeoutExpired:
        raise UserError(f"the run of {arm.name} was not over after {longest:.0f} s: ended") from None
    finally:
        _end(process)
    if process.returncode != 0:
        raise Failed(process.returncode)
    try:
        return json.loads(said)
    except ValueError:
        raise UserError(f"the run of {arm.name} wrote no result") from None


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
