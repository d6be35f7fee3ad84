"""Measure LiteLLM's proxy and NeMo Guardrails' server, with the same load client and model server as for Railbus.

    python -m tests.bench.peers litellm --program ENV/bin/litellm          no guardrail
    python -m tests.bench.peers litellm-late --program ENV/bin/litellm     first token after 2 s, fallback after 200 ms
    python -m tests.bench.peers nemo --program ENV/bin/nemoguardrails      IORails without a rail
    python -m tests.bench.peers nemo-batch --program ENV/bin/nemoguardrails    stream_first, batches of 10 tokens

ENV is a virtual environment for one of them, made with ``pip install 'litellm[proxy]==1.109.1'`` or
``pip install 'nemoguardrails[server]==0.24.1'``. ``litellm-late`` prints times to first token. The others print the
added time: requests go directly to the model server in one run, and through the proxy or guardrails server in the
next, and the added time is the difference of the medians.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

from services.cli.tree.ports import free_port
from tests.bench.added_ttft import MODEL, REQUESTS_PER_STREAM, table
from tests.bench.kit.servers import load, upstream, wait_for

KEY = "sk-loopback-bench-only"
QUIET = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_TELEMETRY": "False",
    "LITELLM_LOG": "ERROR",
    "NO_DOCS": "True",
}
QUIET |= {"NEMO_GUARDRAILS_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "OPENAI_API_KEY": "sk-x"}
LATE = {"late": "fake-A-t2000-g20-n20-h0", "late-ka": "fake-A-t2000-g20-n20-ka", "backup": "fake-B-t30-g20-n20"}


def litellm(url, folder, port, late):
    """Write LiteLLM's configuration. Return the arguments of its program and the URL path of its readiness check.

    Args:
        url: URL of the test model server.
        folder: Folder for the configuration.
        port: Port on which LiteLLM listens.
        late: Whether to use models whose first token is late, and a fallback after 200 ms.
    """
    upstream_of = {"api_base": f"{url}/v1", "api_key": "sk-x", "max_retries": 0} | (
        {"stream_timeout": 0.2} if late else {}
    )
    models = LATE if late else {MODEL: MODEL}
    config = {
        "model_list": [
            {"model_name": name, "litellm_params": {"model": f"openai/{model}"} | upstream_of}
            for name, model in models.items()
        ],
        "general_settings": {"master_key": KEY},
        "litellm_settings": {"telemetry": False, "num_retries": 0},
        "router_settings": {
            "num_retries": 0, "allowed_fails": 1_000, "disable_cooldowns": True,
            "fallbacks": [{name: ["backup"]} for name in models if late and name != "backup"],
        },
    }  # fmt: skip
    (folder / "config.yaml").write_text(json.dumps(config))
    arguments = ["--config", str(folder / "config.yaml"), "--host", "127.0.0.1", "--port", str(port)]
    return [*arguments, "--num_workers", "1"], "health/liveliness"


def nemo(url, folder, port, batch):
    """Write NeMo's configuration. Return the arguments of its program and the URL path of its readiness check.

    Args:
        url: URL of the test model server.
        folder: Folder for the configuration.
        port: Port on which NeMo's server listens.
        batch: Whether NeMo checks the answer, 10 tokens at a time.
    """
    parameters = {"base_url": f"{url}/v1", "api_key": "sk-x"}
    config = {"models": [{"type": "main", "engine": "openai", "model": MODEL, "parameters": parameters}]}
    if batch:
        streaming = {"enabled": True, "chunk_size": 10, "context_size": 5, "stream_first": True}
        config["rails"] = {
            "output": {"parallel": False, "flows": ["regex check output"], "streaming": streaming},
            "config": {"regex_detection": {"output": {"patterns": ["FORBIDDEN", r"\b\d{3}-\d{2}-\d{4}\b"]}}},
        }
    (folder / "bench").mkdir()
    (folder / "bench" / "config.yml").write_text(json.dumps(config))
    return ["server", "--config", str(folder / "bench"), "--port", str(port), "--disable-chat-ui"], "healthz"


@contextmanager
def serving(given, url):
    """Run LiteLLM's or NeMo's server within the ``with`` block, and yield its URL and its process.

    Args:
        given: The options of the command line.
        url: URL of the test model server.
    """
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        make = litellm if given.peer.startswith("litellm") else nemo
        arguments, ready = make(url, Path(folder), port, given.peer in {"litellm-late", "nemo-batch"})
        environment = os.environ | QUIET | {"NEMO_GUARDRAILS_IORAILS_ENGINE": "true"}
        with (Path(folder) / "log").open("w") as log:
            peer = subprocess.Popen(
                [str(given.program), *arguments], cwd=folder, env=environment, stdout=log, stderr=log
            )
            try:
                wait_for(f"http://127.0.0.1:{port}/{ready}", peer, 120)
                yield f"http://127.0.0.1:{port}", peer
            finally:
                peer.terminate()
                peer.wait(20)


def row(streams, rounds, extra, server, peer):
    """Measure the model server directly and through LiteLLM or NeMo, in alternating runs. Return the medians.

    Args:
        streams: Number of concurrent requests.
        rounds: Number of runs of each kind.
        extra: Additional fields of a request to LiteLLM or NeMo, as JSON.
        server: The test model server.
        peer: URL and process of LiteLLM or NeMo.
    """
    model = ("--model", MODEL, "--streams", str(streams), "--requests", str(streams * REQUESTS_PER_STREAM[streams]))
    trees = ("--tree", f"peer={peer[1].pid}", "--tree", f"upstream={server.process.pid}")
    direct, theirs = [], []
    for _ in range(rounds):
        direct.append(load(server.url, *model))
        theirs.append(load(peer[0], *model, "--header", f"Authorization:Bearer {KEY}", "--extra", extra, *trees))
        if theirs[-1]["errors"] or theirs[-1]["wrong_text"]:
            sys.exit(f"streams failed: {theirs[-1]['errors']}, {theirs[-1]['wrong_text']} with another text")
    middle = statistics.median
    figures = {"streams": streams, "chunks_per_s": middle(run["chunks_per_s"] for run in theirs)}
    for share in ("p50", "p99"):
        base = figures[f"direct_{share}"] = middle(run["ttft_ms"][share] for run in direct)
        figures[f"added_{share}"] = middle(run["ttft_ms"][share] for run in theirs) - base
    figures["cpu_ms_per_stream"] = middle(run["trees"]["peer"]["cpu_ms_per_answer"] for run in theirs)
    figures["rss_mib"] = middle(run["trees"]["peer"]["rss_mib"] for run in theirs)
    return figures | {"others": middle(run["others_cores"] for run in theirs)}


def late(url):
    """Print the times to first token through LiteLLM, for two models that send their first token after 2 s.

    Only one of the models sends keep-alives before its first token. ``url`` is the URL of LiteLLM.
    """
    print("| model | streams | first token ms, p50 / p99 | errors |\n|---|---|---|---|")
    for model, streams in (("late", 1), ("late", 64), ("late-ka", 1)):
        count = ("--streams", str(streams), "--requests", str(4 * streams), "--header", f"Authorization:Bearer {KEY}")
        found = load(url, "--model", model, *count)
        first = found["ttft_ms"] or {"p50": "-", "p99": "-"}
        print(f"| {LATE[model]} | {streams} | {first['p50']} / {first['p99']} | {found['errors']} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=("litellm", "litellm-late", "nemo", "nemo-batch"))
    parser.add_argument("--program", type=Path, required=True, help="executable of LiteLLM or NeMo Guardrails")
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    extra = json.dumps({"guardrails": {"config_id": "bench"}} if given.peer.startswith("nemo") else {})
    with upstream() as server, serving(given, server.url) as peer:
        if given.peer == "litellm-late":
            late(peer[0])
        else:
            table([row(streams, given.rounds, extra, server, peer) for streams in REQUESTS_PER_STREAM])


if __name__ == "__main__":
    main()
