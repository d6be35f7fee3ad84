"""Settings of whole trees for tests that are not about deadlines.

With these settings, an answer survives even if the machine stops a process for seconds.
"""

from pathlib import Path

from tests.integration.rails.lab import copy_patient_policy
from tests.support.policies import replace_in_file

PATIENT_ROUTER = {"RAILBUS_STALL_MIN_MS": "30000", "RAILBUS_CLIENT_GRACE_MS": "30000"}
"""Settings of a router for which no answer counts as stalled, and no client as gone, within half a minute."""


def patient_policy(tmp_path: Path) -> Path:
    """Return the folder of a copy of the default policy with long deadlines.

    Rails and safety checks may take ten seconds. A request of the class ``chat`` that sets no deadlines gets long ones.
    A test may still set deadlines as short as the default policy allows.
    """
    folder = copy_patient_policy(tmp_path, jailbreak=True)
    replace_in_file(folder, "policy.toml", "\ntimeout_ms = 500", "\ntimeout_ms = 10_000")
    file = folder / "policy.toml"
    patient = "[classes.chat.deadlines]\nverdict_ms = 10_000\nttft_ms = 30_000\nstall_ms = 30_000\ntotal_ms = 120_000\n"
    file.write_text(f"{file.read_text()}\n{patient}")
    return folder
