import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from services.cli.host.findings import HostFinding, unreadable

WANTED_OPEN_FILES: Final = 65_536
MAX_SWAPPINESS: Final = 10
DEEP_IDLE_US: Final = 50
"""Exit latency, in microseconds, above which an idle state is reported. Such a state delays a first token."""

CPU: Final = "sys/devices/system/cpu"


def host_findings(root: Path, open_files: tuple[int, int] | None, *, cores: int, allowed: int) -> list[HostFinding]:
    """Check the settings of the Linux host, such as CPU governor, swapping and open-file limit.

    Args:
        root: The folder that contains ``proc`` and ``sys``.
        open_files: Soft and hard limit of this process for open files; None if the system has no such limit.
        cores: Number of cores of the machine.
        allowed: Number of cores that this process may run on.
    """
    checks: tuple[Callable[[Path], HostFinding], ...] = (
        _governor, _idle_states, _huge_pages, _swappiness, _numa_balancing, _numa_nodes, _time_sync,
    )  # fmt: skip
    return [*(check(root) for check in checks), _open_files(open_files), _pinning(cores, allowed)]


def _governor(root: Path) -> HostFinding:
    name, wanted, why = "CPU governor", "performance", "a core that has to speed up first delays each burst of work"
    found = _of_cpus(root, "cpufreq/scaling_governor")
    if not found:
        return unreadable(name, wanted, why, f"/{CPU}/cpu*/cpufreq is not there: a virtual machine's host decides")
    command = "echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"
    return _finding(name, ", ".join(sorted(set(found))), wanted, set(found) == {wanted}, why, command)


def _idle_states(root: Path) -> HostFinding:
    name, wanted = "CPU idle states", f"none that takes more than {DEEP_IDLE_US} us to leave"
    why = "waking a sleeping core delays the first token after a pause; it also costs power when idle"
    folders = sorted((root / CPU / "cpu0/cpuidle").glob("state*"))
    states = [(_read(each / "name"), _read(each / "latency"), _read(each / "disable")) for each in folders]
    if not states:
        return unreadable(name, wanted, why, f"/{CPU}/cpu0/cpuidle is not there")
    deep = [
        state for state, latency, disabled in states if disabled != "1" and _number(latency) > DEEP_IDLE_US
    ]  # fmt: skip
    found = f"{len(states)} states, {len(deep)} deep: {', '.join(deep)}" if deep else f"{len(states)} states, none deep"
    return _finding(name, found, wanted, not deep, why, f"sudo cpupower idle-set --disable-by-latency {DEEP_IDLE_US}")


def _huge_pages(root: Path) -> HostFinding:
    name, wanted = "transparent huge pages", "madvise or always"
    why = "weights and KV caches are large: with small pages each step misses the TLB more often"
    text = _read(root / "sys/kernel/mm/transparent_hugepage/enabled")
    chosen = re.search(r"\[(\w+)\]", text)
    if chosen is None:
        return unreadable(name, wanted, why, "/sys/kernel/mm/transparent_hugepage/enabled")
    command = "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"
    return _finding(name, chosen[1], wanted, chosen[1] in {"madvise", "always"}, why, command)


def _swappiness(root: Path) -> HostFinding:
    name, wanted, why = "swappiness", f"at most {MAX_SWAPPINESS}", "a page of weights that was swapped out costs a step"
    text = _read(root / "proc/sys/vm/swappiness")
    if not text.isdigit():
        return unreadable(name, wanted, why, "/proc/sys/vm/swappiness")
    swaps = _read(root / "proc/swaps").splitlines()[1:]
    if not swaps:
        return HostFinding(name=name, found=f"{text}, and there is no swap", wanted=wanted, state="ok")
    return _finding(name, text, wanted, int(text) <= MAX_SWAPPINESS, why, f"sudo sysctl vm.swappiness={MAX_SWAPPINESS}")


def _numa_balancing(root: Path) -> HostFinding:
    name, wanted, why = "NUMA balancing", "0 where engines are pinned", "the kernel moves pages while they are in use"
    text = _read(root / "proc/sys/kernel/numa_balancing")
    if not text.isdigit():
        return unreadable(name, wanted, why, "/proc/sys/kernel/numa_balancing")
    return _finding(name, text, wanted, text == "0", why, "sudo sysctl kernel.numa_balancing=0")


def _numa_nodes(root: Path) -> HostFinding:
    name, wanted = "NUMA nodes", "an engine on one node's cores and memory"
    folders = sorted((root / "sys/devices/system/node").glob("node[0-9]*"))
    if not folders:
        return unreadable(name, wanted, "", "/sys/devices/system/node")
    lists = [f"{each.name} has cores {_read(each / 'cpulist')}" for each in folders]
    if len(folders) == 1:
        return HostFinding(name=name, found=lists[0], wanted=wanted, state="ok")
    cores = _read(folders[0] / "cpulist")
    return HostFinding(
        name=name, found="; ".join(lists), wanted=wanted, state="note", why="memory of another node is slower",
        command=f"RAILBUS_GENERATOR_CORES={cores} railbus up, or numactl --cpunodebind=0 --membind=0",
    )  # fmt: skip


def _time_sync(root: Path) -> HostFinding:
    name, wanted = "time synchronisation", "a running time service"
    why = "Railbus never compares clocks of hosts, but logs, traces and certificates do"
    if (root / "run/systemd/timesync/synchronized").exists():
        return HostFinding(name=name, found="systemd-timesyncd is synchronised", wanted=wanted, state="ok")
    running = next((each for each in _commands(root) if each in {"chronyd", "ntpd", "systemd-timesyn", "ptp4l"}), None)
    if running is not None:
        return HostFinding(name=name, found=f"{running} runs", wanted=wanted, state="ok")
    return HostFinding(
        name=name, found="no time service is seen", wanted=wanted, state="note",
        why=f"{why}; in a container the host's service is not seen", command="sudo apt-get install chrony",
    )  # fmt: skip


def _open_files(limits: tuple[int, int] | None) -> HostFinding:
    name, wanted = "open files (ulimit -n)", f"{WANTED_OPEN_FILES} or more"
    why = "each client is a connection, and each connection is a file"
    if limits is None:
        return unreadable(name, wanted, why, "no such limit on this system")
    soft, hard = limits
    found = f"{_limit(soft)}, at most {_limit(hard)}"
    enough = soft < 0 or soft >= WANTED_OPEN_FILES
    allowed = hard < 0 or hard >= WANTED_OPEN_FILES
    command = (
        f"ulimit -n {WANTED_OPEN_FILES}"
        if allowed
        else f"sudo sh -c 'echo \"* hard nofile {WANTED_OPEN_FILES}\" >> /etc/security/limits.conf'"
    )
    return _finding(name, found, wanted, enough, why, command)


def _pinning(cores: int, allowed: int) -> HostFinding:
    name, wanted = "cores of this process", "as many as the engine is to have"
    return HostFinding(name=name, found=f"{allowed} of {cores}", wanted=wanted, state="ok")


def _finding(name: str, found: str, wanted: str, good: bool, why: str, command: str) -> HostFinding:
    return HostFinding(
        name=name, found=found, wanted=wanted, state="ok" if good else "change", why=why, command=command
    )  # fmt: skip


def _of_cpus(root: Path, below: str) -> list[str]:
    return [text for folder in sorted((root / CPU).glob("cpu[0-9]*")) if (text := _read(folder / below))]


def _commands(root: Path) -> Iterator[str]:
    for path in (root / "proc").glob("[0-9]*/comm"):
        yield _read(path)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _limit(value: int) -> str:
    return "no limit" if value < 0 else str(value)
