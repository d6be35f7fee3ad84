"""Whole trees for tests whose subject is no deadline: a process that the machine stops for seconds ends no answer."""

from pathlib import Path

from tests.integration.rails.lab import copy_patient_policy
from tests.support.policies import replace_in_file

PATIENT_ROUTER = {"RAILBUS_STALL_MIN_MS": "30000", "RAILBUS_CLIENT_GRACE_MS": "30000"}
"""No answer counts as silent, and no client as gone, before half a minute: a router's settings."""


def patient_policy(tmp_path: Path) -> Path:
    """The default policy, with ten seconds for the rails and for a check; a request that asks for none is given them.

    The least deadlines are the default policy's, so a test may still ask for short ones.
    """
    folder = copy_patient_policy(tmp_path, jailbreak=True)
    replace_in_file(folder, "policy.toml", "\ntimeout_ms = 500", "\ntimeout_ms = 10_000")
    file = folder / "policy.toml"
    patient = "[classes.chat.deadlines]\nverdict_ms = 10_000\nttft_ms = 30_000\nstall_ms = 30_000\ntotal_ms = 120_000\n"
    file.write_text(f"{file.read_text()}\n{patient}")
    return folder
