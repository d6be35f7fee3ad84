"""Try a policy in a separate process, before a service uses the policy.

The Rego engine has no limits of memory, stack or time, so a faulty policy may crash its process or block it for
minutes.
"""

import os
import resource
import signal
import subprocess
import sys
from typing import Final

import msgspec

from services.policy.engines.decision_log import RegoDecision
from services.policy.errors import BrokenPolicy, PolicyFault
from services.policy.rulings import ADMISSION
from services.policy.source.files import Files

TRIAL_S: Final = 20
"""CPU time limit of a trial in seconds. Its wall-clock limit is three times this. A shipped policy takes a third of a
second."""

MAX_TRIAL_BYTES: Final = 2 << 30
"""Maximum address space of a trial in bytes. A shipped policy takes an eighth of it."""

MAX_ANSWER_NS: Final = 500_000_000
"""Maximum CPU time of an answer of Rego, in nanoseconds. An answer of a shipped policy takes 0.02 ms."""

_STEPS: Final = {
    "build": (".", "its files are compiled"),
    "admission": ("rego/admission.rego", "it is asked about an unknown tenant"),
    "findings": ("rego/findings.rego", "it is asked about each category"),
    "golden": ("golden", "its cases are asked"),
}


def try_policy(files: Files) -> None:
    """In another process, build a policy and evaluate its Rego.

    Raises:
        BrokenPolicy: The files have faults, or the process died or took too long. ``temporary`` is True if the
            process did not start, timed out or was killed with SIGKILL, because the same files may pass later.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}
    given = msgspec.msgpack.encode(dict(files))
    # -P (safe path): nothing is imported from the folder that the service was started in.
    command = [sys.executable, "-P", "-c", "from services.policy.trial import main; main()"]
    try:
        ended = subprocess.run(  # noqa: S603 - this module; the files are data on its standard input
            command, input=given, capture_output=True, env=environment, timeout=3 * TRIAL_S, check=False
        )
        output, why = ended.stdout, f"ended the process ({_name(ended.returncode, ended.stderr)})"
        temporary = ended.returncode == -signal.SIGKILL
        if ended.returncode == 0:
            faults = msgspec.json.decode(output.splitlines()[-1], type=list[tuple[str, int, str]])
            if faults:
                raise BrokenPolicy([PolicyFault(*fault) for fault in faults])
            return
    except subprocess.TimeoutExpired as late:
        output, why, temporary = late.stdout or b"", f"took more than {3 * TRIAL_S} s", True
    except OSError as error:
        message = f"the process that tries it did not start ({error.strerror}); if this repeats, free memory"
        raise BrokenPolicy([PolicyFault(".", 0, message)], temporary=True) from None
    step = output.decode(errors="replace").split()
    path, doing = _STEPS.get(step[-1] if step else "", (".", "it is tried"))
    remedy = "make it simpler: fewer levels, smaller numbers, shorter texts"
    message = f"{why} when {doing}; {'if this repeats, ' if temporary else ''}{remedy}"
    raise BrokenPolicy([PolicyFault(path, 0, message)], temporary=temporary)


def _name(status: int, said: bytes) -> str:
    if status == -signal.SIGXCPU:
        return f"more than {TRIAL_S} s of CPU"
    if status == -signal.SIGKILL:
        return "it was killed: probably the machine had no memory left"
    if status in {-signal.SIGABRT, -signal.SIGSEGV}:
        return f"signal {-status}: its memory or its stack was not enough"
    last = said.decode(errors="replace").strip().rpartition("\n")[2]  # the last line of a traceback names the error
    return f"status {status}: {last[:300]}" if last else f"status {status}"


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (TRIAL_S, TRIAL_S + 2))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_TRIAL_BYTES, MAX_TRIAL_BYTES))
    files = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=dict[str, bytes])
    try:
        _try_here(files)
        faults: tuple[PolicyFault, ...] = ()
    except BrokenPolicy as broken:
        faults = broken.faults
    _say(msgspec.json.encode([(fault.path, fault.line, fault.message) for fault in faults]))


def _try_here(files: Files) -> None:
    from services.policy.golden import cases, run_case  # imported here because they import many modules
    from services.policy.lint import admission_faults, finding_faults
    from services.policy.load import build

    _say(b"build")
    policy = build(files)
    slow: list[RegoDecision] = []
    policy.listen(lambda decision: slow.append(decision) if decision.took_ns > MAX_ANSWER_NS else None)
    _say(b"admission")
    admission_faults(policy)  # faults are ignored, because a service denies such requests one by one
    _say(b"findings")
    finding_faults(policy)
    _say(b"golden")
    for case in cases(policy):
        run_case(policy, case)
    if slow:
        path = _STEPS["admission" if slow[0].entry_point == ADMISSION else "findings"][0]
        message = f"an answer takes {slow[0].took_ns / 1e6:.0f} ms, and nothing else is done meanwhile; make it simpler"
        raise BrokenPolicy([PolicyFault(path, 0, message)])


def _say(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()
