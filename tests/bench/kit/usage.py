"""Measure the CPU time and memory of a process and its descendants, and the CPU time of the whole machine."""

from collections.abc import Iterator

import psutil


def _tree(process: psutil.Process) -> Iterator[psutil.Process]:
    yield process
    yield from process.children(recursive=True)


def tree_cpu_s(process: psutil.Process) -> float:
    """Return the CPU time of a process and its descendants, user and system time together, in seconds.

    The time of a descendant that has ended counts, too, if its parent still runs.
    """
    total = 0.0
    for each in _tree(process):
        try:
            total += sum(each.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return total


def tree_rss_mib(process: psutil.Process) -> float:
    """Return the resident memory of a process and its descendants, in MiB.

    A page that several processes share is counted several times.
    """
    total = 0
    for each in _tree(process):
        try:
            total += each.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total / 2**20


def machine_busy_s() -> float:
    """Return the CPU time that the whole machine has used since it started, in seconds."""
    times = psutil.cpu_times()
    return sum(getattr(times, name, 0.0) for name in ("user", "system", "nice", "softirq", "irq", "steal"))
