"""Tests of ``railbus doctor --host`` on made-up hosts, and of ``--gpu`` with made-up output of nvidia-smi."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from services.cli.host.findings import host_report
from services.cli.host.linux import host_findings
from services.cli.host.nvidia import ARGUMENTS, QUERY, gpu_findings

GOOD = {
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
    "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "performance\n",
    "sys/devices/system/cpu/cpu0/cpuidle/state0/name": "POLL",
    "sys/devices/system/cpu/cpu0/cpuidle/state0/latency": "0",
    "sys/devices/system/cpu/cpu0/cpuidle/state0/disable": "0",
    "sys/devices/system/cpu/cpu0/cpuidle/state3/name": "C6",
    "sys/devices/system/cpu/cpu0/cpuidle/state3/latency": "133",
    "sys/devices/system/cpu/cpu0/cpuidle/state3/disable": "1",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "proc/sys/vm/swappiness": "1\n",
    "proc/swaps": "Filename Type Size Used Priority\n/dev/sda2 partition 8 0 -2\n",
    "proc/sys/kernel/numa_balancing": "0\n",
    "proc/712/comm": "chronyd\n",
    "sys/devices/system/node/node0/cpulist": "0-1\n",
}

BAD = GOOD | {
    "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "powersave\n",
    "sys/devices/system/cpu/cpu0/cpuidle/state3/disable": "0",
    "sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]\n",
    "proc/sys/vm/swappiness": "60\n",
    "proc/sys/kernel/numa_balancing": "1\n",
    "proc/712/comm": "bash\n",
    "sys/devices/system/node/node1/cpulist": "2-3\n",
}


def host(root: Path, files: dict[str, str], limits=(1_048_576, 1_048_576)):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return {each.name: each for each in host_findings(root, limits, cores=4, allowed=2)}


def test_a_host_that_is_set_up_has_nothing_to_change(tmp_path):
    found = host(tmp_path, GOOD)
    assert {each.state for each in found.values()} == {"ok"}
    assert host_report(list(found.values())).endswith("0 to change, 0 not readable here; nothing was changed")


def test_each_setting_that_is_not_done_has_a_command(tmp_path):
    found = host(tmp_path, BAD, limits=(1_024, 4_096))
    change = {name for name, each in found.items() if each.state == "change"}
    assert change == {
        "CPU governor", "CPU idle states", "transparent huge pages", "swappiness", "NUMA balancing",
        "open files (ulimit -n)",
    }  # fmt: skip
    assert all(found[name].command and found[name].why for name in change)
    assert found["CPU governor"].found == "performance, powersave"
    assert found["CPU idle states"].found == "2 states, 1 deep: C6"
    assert "limits.conf" in found["open files (ulimit -n)"].command
    assert found["NUMA nodes"].state == found["time synchronisation"].state == "note"
    assert "RAILBUS_GENERATOR_CORES=0-1" in found["NUMA nodes"].command


def test_a_soft_limit_can_be_raised_without_root(tmp_path):
    found = host(tmp_path, GOOD, limits=(1_024, 1_048_576))["open files (ulimit -n)"]
    assert found.command == "ulimit -n 65536"
    assert host(tmp_path, GOOD, limits=(-1, -1))["open files (ulimit -n)"].found == "no limit, at most no limit"


def test_what_cannot_be_read_is_said_and_nothing_is_guessed(tmp_path):
    found = host(tmp_path, {}, limits=None)
    unknown = {name for name, each in found.items() if each.state == "unknown"}
    assert set(found) - unknown == {"time synchronisation", "cores of this process"}
    assert "not readable here" in host_report(list(found.values()))


def test_without_swap_swappiness_does_not_matter(tmp_path):
    files = GOOD | {"proc/sys/vm/swappiness": "60", "proc/swaps": "Filename Type Size Used Priority\n"}
    assert host(tmp_path, files)["swappiness"].state == "ok"


H100 = "0, NVIDIA H100 80GB HBM3, 570.86, Enabled, 1980, 1980, 1980, 1980, 700.00, 700.00, Disabled, Enabled, 5, 5, 16, 16, Default"  # noqa: E501 - as it is printed
LAZY = "1, NVIDIA H100 80GB HBM3, 570.86, Disabled, 345, 1980, [N/A], 1980, 400.00, 700.00, Enabled, Disabled, 1, 5, 8, 16, Exclusive_Process"  # noqa: E501 - likewise
T4 = "0, Tesla T4, 470.1, Enabled, 300, 1590, 585, 1590, 70.00, 70.00, [N/A], [N/A], 1, 3, 8, 16, Default"


def test_a_card_that_is_set_up_has_nothing_to_change():
    found = gpu_findings(H100 + "\n", "")
    assert {each.state for each in found} == {"ok", "note"}
    assert [each.name for each in found if each.state == "note"] == ["GPU 0 clocks"]


def test_a_card_that_is_not_has_a_command_for_each():
    found = {each.name: each for each in gpu_findings(f"{H100}\n{LAZY}\n", "")}
    assert {name: each.command for name, each in found.items() if each.state == "change"} == {
        "GPU 1 persistence mode": "sudo nvidia-smi -i 1 -pm 1",
        "GPU 1 power limit": "sudo nvidia-smi -i 1 -pl 700",
        "GPU 1 MIG": "sudo nvidia-smi -i 1 -mig 0",
        "GPU 1 compute mode": "sudo nvidia-smi -i 1 -c DEFAULT",
    }
    assert found["GPU 1 ECC"].state == found["GPU 1 PCIe"].state == "note"
    assert found["GPU topology"].state == "unknown"


def test_what_a_card_does_not_report_is_not_readable():
    found = {each.name: each for each in gpu_findings(T4, "")}
    assert found["GPU 0 MIG"].state == found["GPU 0 ECC"].state == "unknown"


@pytest.mark.parametrize("text", ["", "No devices were found\n", "0, half a row"])
def test_no_card(text):
    assert [each.state for each in gpu_findings(text, "")] == ["unknown"]


MATRIX = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \t{link}\t0-31\nGPU1\t{link}\t X \t0-31\n\nLegend:\n"


@pytest.mark.parametrize(("link", "state"), [("NV18", "ok"), ("SYS", "note")])
def test_links_between_cards(link, state):
    second = H100.replace("0, NVIDIA", "1, NVIDIA", 1)
    found = gpu_findings(f"{H100}\n{second}\n", MATRIX.format(link=link))[-1]
    assert (found.name, found.state) == ("GPU topology", state)


def test_the_command_asks_nvidia_smi_and_changes_nothing(tmp_path):
    """``railbus doctor --host --gpu`` runs nvidia-smi only with arguments that change nothing.

    A fake nvidia-smi records its arguments, and answers as the real one does.
    """
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/asked\ncase "$1" in topo) exit 1;; *) echo "{LAZY}";; esac\n')
    tool.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "services.cli", "doctor", "--host", "--gpu"], capture_output=True, text=True, timeout=60,
        check=True, env={**os.environ, "PATH": f"{tmp_path}:/usr/bin:/bin"},
    )  # fmt: skip
    assert "CHANGE  GPU 1 persistence mode" in done.stdout
    assert "open files" in done.stdout
    assert (tmp_path / "asked").read_text().splitlines() == [" ".join(ARGUMENTS), "topo -m"]
    assert len(QUERY) == len(LAZY.split(","))
