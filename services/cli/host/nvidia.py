"""Check the settings of NVIDIA GPUs as ``nvidia-smi`` prints them. No I/O."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Final

from services.cli.host.findings import HostFinding, unreadable

QUERY: Final = (
    "index", "name", "driver_version", "persistence_mode", "clocks.sm", "clocks.max.sm", "clocks.applications.graphics",
    "clocks.max.graphics", "power.limit", "power.max_limit", "mig.mode.current", "ecc.mode.current",
    "pcie.link.gen.current", "pcie.link.gen.max", "pcie.link.width.current", "pcie.link.width.max", "compute_mode",
)  # fmt: skip
"""Fields of each GPU that ``nvidia-smi`` is asked for, in the order of the columns of its output."""

ARGUMENTS: Final = (f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits")

_ABSENT: Final = frozenset({"", "[N/A]", "N/A", "[Not Supported]", "[Unknown Error]", "[Insufficient Permissions]"})


def gpu_findings(text: str, topology: str) -> list[HostFinding]:
    """Check the settings of all GPUs.

    Args:
        text: Output of ``nvidia-smi`` with ``ARGUMENTS``; empty if it failed.
        topology: Output of ``nvidia-smi topo -m``; empty if it failed.
    """
    rows = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(text)) if row]
    rows = [row for row in rows if len(row) == len(QUERY)]
    if not rows:
        return [unreadable("GPU", "one or more", "", "nvidia-smi lists none")]
    found = [finding for row in rows for finding in _one(dict(zip(QUERY, row, strict=True)))]
    return [*found, _topology(topology, len(rows))]


def _one(gpu: Mapping[str, str]) -> list[HostFinding]:
    index = gpu["index"]
    name = f"GPU {index}"
    return [
        HostFinding(name=name, found=f"{gpu['name']}, driver {gpu['driver_version']}", wanted="a GPU", state="ok"),
        _exact(
            f"{name} persistence mode", gpu["persistence_mode"], "Enabled", f"sudo nvidia-smi -i {index} -pm 1",
            "without it the driver loads anew when the last process has ended",
        ),
        _clocks(name, gpu),
        _most(
            f"{name} power limit", gpu["power.limit"], gpu["power.max_limit"], "W",
            f"sudo nvidia-smi -i {index} -pl {gpu['power.max_limit'].partition('.')[0]}",
            "a lower limit slows prefill, which is bound by arithmetic; decoding hardly notices",
        ),
        _exact(
            f"{name} MIG", gpu["mig.mode.current"], "Disabled", f"sudo nvidia-smi -i {index} -mig 0",
            "a slice has a part of the bandwidth; leave it on only if several engines are to share the card",
        ),
        _ecc(name, gpu["ecc.mode.current"]),
        _link(name, gpu),
        _exact(
            f"{name} compute mode", gpu["compute_mode"], "Default", f"sudo nvidia-smi -i {index} -c DEFAULT",
            "an engine of several processes needs the card from each",
        ),
    ]  # fmt: skip


def _exact(name: str, value: str, wanted: str, command: str, why: str) -> HostFinding:
    if value in _ABSENT:
        return unreadable(name, wanted, why, "this card or driver does not report it")
    good = value == wanted
    return HostFinding(
        name=name, found=value, wanted=wanted, state="ok" if good else "change", why=why, command=command
    )  # fmt: skip


def _most(name: str, value: str, most: str, unit: str, command: str, why: str) -> HostFinding:
    now, limit = _number(value), _number(most)
    if now is None or limit is None:
        return unreadable(name, "the highest", why, "this card or driver does not report it")
    good = now >= limit * 0.99
    return HostFinding(
        name=name, found=f"{now:g} {unit}", wanted=f"{limit:g} {unit}", state="ok" if good else "change", why=why,
        command=command,
    )  # fmt: skip


def _clocks(name: str, gpu: Mapping[str, str]) -> HostFinding:
    label, most = f"{name} clocks", _number(gpu["clocks.max.sm"])
    now, application = _number(gpu["clocks.sm"]), _number(gpu["clocks.applications.graphics"])
    if most is None or now is None:
        return unreadable(label, "locked while measuring", "", "this card or driver does not report them")
    found = f"{now:g} MHz now, {most:g} at most"
    if application is not None:
        found += f", {application:g} set for applications"
    return HostFinding(
        name=label, found=found, wanted="locked while measuring; in service left to the card", state="note",
        why="an idle card clocks down, so the first steps after a pause are slow; a lock that is too high throttles",
        command=f"sudo nvidia-smi -i {gpu['index']} -lgc {most:g}   # back: -rgc",
    )  # fmt: skip


def _ecc(name: str, value: str) -> HostFinding:
    label, wanted = f"{name} ECC", "Enabled"
    if value in _ABSENT:
        return unreadable(label, wanted, "", "this card has none, or does not report it")
    why = "HBM cards lose nothing by it, and a flipped bit in the weights is silent"
    return HostFinding(
        name=label, found=value, wanted=wanted, state="ok" if value == wanted else "note", why=why,
        command="sudo nvidia-smi -e 1   # from the next boot on",
    )  # fmt: skip


def _link(name: str, gpu: Mapping[str, str]) -> HostFinding:
    label = f"{name} PCIe"
    width, most = _number(gpu["pcie.link.width.current"]), _number(gpu["pcie.link.width.max"])
    generation, newest = _number(gpu["pcie.link.gen.current"]), _number(gpu["pcie.link.gen.max"])
    if None in {width, most, generation, newest} or width is None or most is None:
        return unreadable(label, "the widest", "", "this card or driver does not report it")
    good = width >= most  # an idle link lowers its generation, never its width
    return HostFinding(
        name=label, found=f"generation {generation:g} of {newest:g}, width {width:g} of {most:g}",
        wanted=f"width {most:g}", state="ok" if good else "note",
        why="loading weights and tensor parallelism without NVLink go over it: look at slot and riser",
    )  # fmt: skip


def _topology(text: str, gpus: int) -> HostFinding:
    wanted = "NVLink between GPUs that share a model"
    if gpus == 1:
        return HostFinding(name="GPU topology", found="one GPU", wanted=wanted, state="ok")
    rows = [line.split() for line in text.splitlines() if line.startswith("GPU")]
    links = [cell for at, row in enumerate(rows) for other, cell in enumerate(row[1 : gpus + 1]) if at != other]
    if not links:
        return unreadable("GPU topology", wanted, "", "nvidia-smi topo -m printed no matrix")
    slow = sorted({cell for cell in links if not cell.startswith("NV")})
    found = "NVLink between all" if not slow else f"some pairs are joined by {_list(slow)} only"
    return HostFinding(
        name="GPU topology", found=found, wanted=wanted, state="note" if slow else "ok",
        why="tensor parallelism waits for the slowest link in every layer; choose the cards of one model by it",
        command="CUDA_VISIBLE_DEVICES=0,1 railbus up ..." if slow else "",
    )  # fmt: skip


def _list(words: Sequence[str]) -> str:
    return ", ".join(words)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
