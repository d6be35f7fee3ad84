"""Processor time and memory of a process with all below it, and of the whole machine."""

from collections.abc import Iterator

import psutil


def _tree(process: psutil.Process) -> Iterator[psutil.Process]:
    yield process
    yield from process.children(recursive=True)


def tree_cpu_s(process: psutil.Process) -> float:
    """Return user and system seconds of a process and all below it, ended children of a living one included."""
    total = 0.0
    for each in _tree(process):
        try:
            total += sum(each.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return total


def tree_rss_mib(process: psutil.Process) -> float:
    """Return the resident memory of a process and all below it, in MiB; shared pages count in each."""
    total = 0
    for each in _tree(process):
        try:
            total += each.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total / 2**20


def machine_busy_s() -> float:
    """Return the processor seconds that anybody has used since the machine started."""
    times = psutil.cpu_times()
    return sum(getattr(times, name, 0.0) for name in ("user", "system", "nice", "softirq", "irq", "steal"))
