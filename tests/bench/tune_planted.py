"""``python -m tests.bench.tune_planted ENGINE [--runs 3]``: check that ``railbus tune`` repairs a planted bad setting.

Each run puts one bad setting into the baseline and offers three changes: the remedy, a change without effect, and a
lossy change, which may alter answers. A run passes if the tuner keeps the remedy, does not keep the change without
effect, and reports a confidence interval for the lossy change's rise in perplexity (not for engine ``simulated``).
``--minutes`` limits the time of each run's measurements (for ``llama``, 9 by default). If time is short, the tuner
measures fewer requests and says why. Engine ``vllm`` needs the Python of ``.venv-vllm``. Its model has random weights,
and its tokenizer has a token for each word of the tuner's tasks.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from services.tuner.quality.tasks import task_set
from services.tuner.run.prompts import INSTRUCTION, WORDS

PLANTED = {
    "llama": {
        "base": {"RAILBUS_LLAMA_SLOTS": "4"},
        "bad": [
            ({"RAILBUS_LLAMA_PREFIX_CACHE": "off"}, "prefix-cache:RAILBUS_LLAMA_PREFIX_CACHE=on"),
        ],
        "nothing": "kv:RAILBUS_LLAMA_CONTEXT=2304",
        "lossy": "kv:RAILBUS_LLAMA_KV=q4_0",
        "flags": ["--prompt", "160", "--shared", "0.8", "--output", "8", "--at-once", "4", "--rounds", "4"],
        "requests": 1_000,
        "minutes": 9,
    },
    "vllm": {
        "base": {
            "RAILBUS_VLLM_DEVICE": "cpu", "RAILBUS_VLLM_DTYPE": "float32", "RAILBUS_VLLM_BLOCK_SIZE": "32",
            "RAILBUS_VLLM_EAGER": "on", "RAILBUS_VLLM_KV_GIB": "0.25", "RAILBUS_VLLM_MAX_LEN": "1024",
            "RAILBUS_VLLM_MAX_SEQS": "16",
        },
        "bad": [
            ({"RAILBUS_VLLM_MAX_SEQS": "1"}, "batching:RAILBUS_VLLM_MAX_SEQS=16"),
            ({"RAILBUS_VLLM_PREFIX_CACHING": "off"}, "prefix-cache:RAILBUS_VLLM_PREFIX_CACHING=on"),
            ({"RAILBUS_VLLM_BATCHED_TOKENS": "32"}, "batching:RAILBUS_VLLM_BATCHED_TOKENS=2048"),
        ],
        "nothing": "kv:RAILBUS_VLLM_SEED=7",
        "lossy": "quantization:RAILBUS_VLLM_DTYPE=bfloat16",
        "flags": ["--prompt", "320", "--shared", "0.9", "--output", "8", "--at-once", "8", "--rounds", "8",
                  "--keep-engines", "--margin", "0.1",
                  "--accept", "token_p99_ms=250"],  # batched, a token waits for the prompts of others
        "requests": 384,
    },
    "simulated": {
        "base": {"RAILBUS_SIM_TIME_SCALE": "0.2"},
        "bad": [
            ({"RAILBUS_SIM_GAMMA": "0", "RAILBUS_SIM_ALPHA": "0.95"}, "speculation:RAILBUS_SIM_GAMMA=4"),
            ({"RAILBUS_SIM_BATCH": "1"}, "batching:RAILBUS_SIM_BATCH=64"),
            ({"RAILBUS_SIM_PREFILL_BUDGET": "8"}, "batching:RAILBUS_SIM_PREFILL_BUDGET=2048"),
        ],
        "nothing": "batching:RAILBUS_SIM_SCRIPT_RATE=0.5",
        "lossy": "quantization:RAILBUS_SIM_PRECISION=int4",
        "flags": ["--at-once", "4", "--rounds", "4"],
        "requests": 128,
    },
}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.bench.tune_planted")
    parser.add_argument("engine", choices=tuple(PLANTED))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="number of the first run (default: %(default)s)")
    parser.add_argument("--minutes", type=float, help="minutes for each run's measurements, without those of quality")
    parser.add_argument(
        "--model", type=Path, help="engine vllm: folder of the model; the model is made if it is not there"
    )
    args = parser.parse_args()
    good = 0
    sys.stdout.reconfigure(line_buffering=True)
    with tempfile.TemporaryDirectory(prefix="tune-planted-") as scratch:
        extra = {}
        if args.engine == "vllm":
            folder = args.model or Path(scratch) / "model"
            extra["RAILBUS_MODEL_PATH"] = str(folder if (folder / "config.json").exists() else knowing_model(folder))
        for number in range(args.first, args.first + args.runs):
            good += run(args.engine, number, extra, Path(scratch) / f"run{number}", args.minutes)
    print(f"{args.engine}: {good} of {args.runs} runs: remedy kept, nothing else without a gain")
    return 0 if good == args.runs else 1


def run(engine, number, extra, out, minutes):
    """Run one experiment, and return whether it passed. The module's docstring says when a run passes."""
    plan = PLANTED[engine]
    bad, remedy = plan["bad"][number % len(plan["bad"])]
    base = plan["base"] | extra | bad
    minutes = minutes or plan.get("minutes")
    command = [
        sys.executable, "-m", "services.cli", "tune", "--engine", engine, "--no-list", *plan["flags"],
        "--requests", str(plan["requests"]), "--seed", str(number + 1), "--max-loss", "0.2", "--out", str(out),
        *(() if minutes is None else ("--budget", str(minutes))),
        *(flag for pair in base.items() for flag in ("--set", "=".join(pair))),
        "--try", remedy, "--try", plan["nothing"], "--try-lossy", plan["lossy"],
    ]  # fmt: skip
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    told = json.loads((out / "report.json").read_text())
    found = {change["change"]["name"]: change for change in told["changes"]}
    offered = [name(text) for text in (remedy, plan["nothing"], plan["lossy"])]
    if untried := [each for each in offered if each not in found]:
        print(f"run {number + 1}: {bad} planted; not tried: {', '.join(untried)}: {told['stopped']}, {told['skipped']}")
        return False
    remedied, nothing, lossy = (found[each] for each in offered)
    null = told["baseline_metrics"]["answer_p50_ms"]
    size = told["size"]
    why = f" ({size['reason']})" if size["reason"] else ""
    print(f"run {number + 1}: {bad} planted, {size['requests']} requests a change{why}, answer p50 {null:.0f} ms")
    for each in (remedied, nothing, lossy):
        print(f"  {each['change']['name']}: {each['outcome']}; {each['reason']}")
    quality = lossy["quality"]
    if quality is not None:
        rise, loss, same = quality["perplexity_rise"], quality["loss"], quality["identical"]
        print(f"  {lossy['change']['name']}: equal answers {interval(same)}, tasks lost {interval(loss)}, perplexity "
              f"{quality['perplexity_before']:.2f} to {quality['perplexity_after']:.2f}, {interval(rise)}")  # fmt: skip
    measured = (quality is not None and quality["perplexity_rise"] is not None) or engine == "simulated"
    return remedied["kept"] and not nothing["kept"] and measured


def name(text):
    """Return the name that the tuner gives to the change ``text``, which has the form ``ITEM:VARIABLE=VALUE``."""
    variable, _, value = text.partition(":")[2].partition("=")
    return f"{variable.removeprefix('RAILBUS_').lower()}={value}"


def interval(found):
    return f"{found['value']:+.1%} ({found['low']:+.1%} to {found['high']:+.1%})"


def knowing_model(folder):
    """Write a model with random weights, and return its folder. Its tokenizer knows each word of the tuner's tasks."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    from tests.vllm.models import SPECIAL, TEMPLATE, make_model

    tasks = task_set()
    texts = [*tasks.texts, *(task.question for task in tasks.tasks), INSTRUCTION, *WORDS]
    words = [*SPECIAL, *sorted({word for text in texts for word in text.split()} - set(SPECIAL))]
    make_model(folder, seed=5, size=len(words), layers=6, hidden=768)
    inner = Tokenizer(WordLevel({word: at for at, word in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>", unk_token="<unk>",
        additional_special_tokens=["<start_of_turn>", "<end_of_turn>"],
    )  # fmt: skip
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


if __name__ == "__main__":
    sys.exit(main())
