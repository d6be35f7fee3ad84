"""What the whole way costs over asking the model server directly: edge, bus, generator, router, broker.

    python -m tests.bench.added_ttft [--kit DIR] [--streams 1,16,64] [--rounds 3]

Uses the load kit that also measures our peers (``upstream.py``: a fake OpenAI-compatible server on a fixed schedule;
``client.py``: a closed-loop streaming client), so that figures can be laid beside theirs. Direct and through-Railbus
runs alternate. CPU is that of the whole tree under ``railbus up``, broker and supervisor included; ``others`` is how
many cores anybody else on the machine used meanwhile: figures from a busy machine are not worth keeping.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
KIT = ROOT.parent / "shared" / "peers"
MODEL = "fake-A-t30-g20-n50"
STREAMS_PER_CONNECTION = {1: 16, 16: 8, 64: 4}


def tree_cpu_s(process: psutil.Process) -> float:
    """User and system seconds of a process and all below it, now."""
    total = 0.0
    for each in [process, *process.children(recursive=True)]:
        try:
            total += sum(each.cpu_times()[:2])
        except psutil.NoSuchProcess:
            continue
    return total


def tree_rss_mb(process: psutil.Process) -> float:
    """Resident memory of a process and all below it, in MiB; shared pages count in each."""
    return sum(each.memory_info().rss for each in [process, *process.children(recursive=True)]) / 2**20


def client(kit: Path, url: str, streams: int) -> dict[str, Any]:
    """One closed-loop run; the client's own figures."""
    count = streams * STREAMS_PER_CONNECTION.get(streams, 4)
    command = [sys.executable, str(kit / "client.py"), "--url", f"{url}/v1/chat/completions", "--model", MODEL]
    command += ["-c", str(streams), "-n", str(count), "--warmup", str(min(2 * streams, 64))]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    figures: dict[str, Any] = json.loads(run.stdout)
    figures["all_streams"] = count + min(2 * streams, 64)
    return figures


def busy_s() -> float:
    """Processor seconds that anybody used since the machine started."""
    times = psutil.cpu_times()
    return sum(getattr(times, name, 0.0) for name in ("user", "system", "nice", "softirq", "irq", "steal"))


def through(kit: Path, url: str, streams: int, tree: psutil.Process, upstream: psutil.Process) -> dict[str, Any]:
    """A run through Railbus, with what the tree spent on it."""
    before, upstream_before, all_before, began = tree_cpu_s(tree), tree_cpu_s(upstream), busy_s(), time.monotonic()
    figures = client(kit, url, streams)
    spent = tree_cpu_s(tree) - before
    known = spent + tree_cpu_s(upstream) - upstream_before + figures["client_cpu_s"]
    figures["cpu_ms_per_stream"] = spent * 1e3 / figures["all_streams"]
    figures["others"] = max(0.0, (busy_s() - all_before - known) / (time.monotonic() - began))
    figures["rss_mb"] = tree_rss_mb(tree)
    return figures


def wait_for(url: str, process: subprocess.Popen[bytes], seconds: float = 60) -> None:
    """Until somebody answers there."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if process.poll() is not None:
            sys.exit(f"a server ended before it was ready, with code {process.returncode}")
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            time.sleep(0.1)
    sys.exit(f"nobody answers at {url}")


def table(rows: list[dict[str, Any]]) -> None:
    """One line per number of streams: medians over the rounds."""
    print("| streams | direct TTFT p50 / p99 ms | added p50 / p99 ms | chunks/s | CPU ms/stream | RSS MiB | others |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['streams']} | {row['direct_p50']:.1f} / {row['direct_p99']:.1f} "
            f"| {row['added_p50']:.1f} / {row['added_p99']:.1f} | {row['chunks_per_s']:.0f} "
            f"| {row['cpu_ms_per_stream']:.1f} | {row['rss_mb']:.0f} | {row['others']:.2f} |"
        )


def measure(kit: Path, streams: int, rounds: int, urls: tuple[str, str], processes: tuple[int, int]) -> dict[str, Any]:
    """Direct and through, in turn."""
    tree, upstream = psutil.Process(processes[0]), psutil.Process(processes[1])
    direct, ours = [], []
    for _ in range(rounds):
        direct.append(client(kit, urls[0], streams))
        ours.append(through(kit, urls[1], streams, tree, upstream))
        if ours[-1]["errors"] or ours[-1]["ok"] != ours[-1]["streams"]:
            sys.exit(f"streams failed: {ours[-1]['errors']}")

    def median(runs: list[dict[str, Any]], name: str) -> float:
        return statistics.median(run[name] for run in runs)

    row = {"streams": streams, "direct_p50": median(direct, "ttft_p50"), "direct_p99": median(direct, "ttft_p99")}
    row |= {name: median(ours, name) for name in ("chunks_per_s", "cpu_ms_per_stream", "rss_mb", "others")}
    row["added_p50"] = median(ours, "ttft_p50") - row["direct_p50"]
    row["added_p99"] = median(ours, "ttft_p99") - row["direct_p99"]
    return row


def main() -> None:
    """Start upstream and Railbus, measure, stop both."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.added_ttft", description=__doc__)
    parser.add_argument("--kit", type=Path, default=KIT, help="folder of the load kit")
    parser.add_argument("--streams", default="1,16,64")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--governed", action="store_true", help="with rails and safety")
    parser.add_argument("--option", action="append", default=[], help="another option for railbus up")
    parser.add_argument("--port", type=int, default=18080, help="of the edge; the upstream is on the next")
    arguments = parser.parse_args()
    if not (arguments.kit / "upstream.py").exists():
        sys.exit(f"no load kit at {arguments.kit}: give its folder with --kit")
    model_url, edge_url = f"http://127.0.0.1:{arguments.port + 1}", f"http://127.0.0.1:{arguments.port}"
    folder = Path(tempfile.mkdtemp(prefix="railbus-bench-"))
    upstream = subprocess.Popen(
        [sys.executable, str(arguments.kit / "upstream.py"), "--port", str(arguments.port + 1)],
        stdout=subprocess.DEVNULL,
    )
    up = [sys.executable, "-m", "services.cli", "up", "--engine", "openai", "--upstream-url", model_url]
    up += ["--port", str(arguments.port), "--data-dir", str(folder), *arguments.option]
    up.append("--governed" if arguments.governed else "--no-governed")
    tree = subprocess.Popen(up, stdout=subprocess.DEVNULL)
    try:
        wait_for(f"{model_url}/v1/models", upstream)
        wait_for(f"{edge_url}/readyz", tree)
        counts = [int(count) for count in arguments.streams.split(",")]
        pids = (tree.pid, upstream.pid)
        table([measure(arguments.kit, count, arguments.rounds, (model_url, edge_url), pids) for count in counts])
    finally:
        for process in (tree, upstream):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
