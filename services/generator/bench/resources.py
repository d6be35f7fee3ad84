"""Measure the CPU time and memory of this process and its descendants."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

_PROC: Final = Path("/proc")
GPU_QUERY_TIMEOUT_S: Final = 5.0


def cpu_seconds() -> float | None:
    """Return the CPU time of this process and its descendants in seconds; None if there is no ``/proc``."""
    ticks = [_ticks(pid) for pid in _tree(os.getpid())]
    return sum(ticks) / os.sysconf("SC_CLK_TCK") if ticks else None


def busy_seconds() -> float | None:
    """Return the CPU time of the whole machine since boot, in seconds; None if it cannot be read."""
    fields = _read(_PROC / "stat").partition("\n")[0].split()
    if len(fields) < 9:
        return None
    user, nice, system, _idle, _waiting, irq, softirq, steal = map(int, fields[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def peak_mib() -> float | None:
    """Return the peak memory of this process plus that of each descendant, in MiB. The peaks may be at different times.

    Return None if there is no ``/proc``.
    """
    peaks = [_peak_kib(pid) for pid in _tree(os.getpid())]
    return round(sum(peaks) / 1024, 1) if peaks else None


def gpu_mib() -> float | None:
    """Return the GPU memory of this process and its descendants in MiB; None if ``nvidia-smi`` does not report it."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    command = [tool, "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=GPU_QUERY_TIMEOUT_S, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    ours = {str(pid) for pid in _tree(os.getpid())}
    rows = [[cell.strip() for cell in line.split(",")] for line in ended.stdout.splitlines()]
    held = [row[1] for row in rows if len(row) == 2 and row[0] in ours and row[1].isdigit()]
    return sum(map(float, held)) if held else None


def machine() -> dict[str, Any]:
    name = os.uname()
    return {"system": name.sysname, "machine": name.machine, "cpus": os.cpu_count()}


def _tree(pid: int) -> list[int]:
    if not (_PROC / str(pid)).is_dir():
        return []
    children: list[int] = []
    for task in _listed(_PROC / str(pid) / "task"):
        children += [int(child) for child in _read(task / "children").split()]
    return [pid, *(below for child in children for below in _tree(child))]


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:  # the process has ended
        return ""


def _ticks(pid: int) -> int:
    fields = _read(_PROC / str(pid) / "stat").rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12]) if len(fields) > 12 else 0


def _peak_kib(pid: int) -> int:
    for line in _read(_PROC / str(pid) / "status").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    return 0
