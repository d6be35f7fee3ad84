"""Measure one arm, that is, one engine with one set of settings.

``python -m tests.bench.gpu`` runs this file as a separate process for each arm. The program prints a line for each
batch size and for each prompt length. A line is the word ``ARM`` and a JSON object.
"""

import argparse
import json
import os
import random
import statistics
import sys
import time
from pathlib import Path


def main():
    """Read the command line, set vLLM's environment variables, and measure the arm."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft")
    parser.add_argument("--gamma", type=int, default=0)
    parser.add_argument("--alpha", type=float, default=0.8)
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runner", choices=("v1", "v2"), default="v1")
    parser.add_argument(
        "--first", default="", help="lengths of prompts whose first token is timed, one prompt at a time"
    )
    parser.add_argument("--precision", choices=("fp8", "bf16"), default="fp8")
    parser.add_argument("--kv", default="auto")
    parser.add_argument("--schedule", default="")
    parser.add_argument("--real", action="store_true", help="the folders of the models have weights and a tokenizer")
    parser.add_argument("--cpu", action="store_true")
    args = parser.parse_args()
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    os.environ["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1" if args.runner == "v2" else "0"
    measure(args)


def measure(args):
    """Load the engine, and measure each batch size of ``args.batches`` and each prompt length of ``args.first``.

    ``args.batches`` and ``args.first`` are numbers separated by commas. All prompts in the batches have
    ``args.prompt`` tokens. For each length in ``args.first``, prompts run one at a time, to measure the time to first
    token.
    """
    from vllm import LLM, SamplingParams

    batches = [int(each) for each in args.batches.split(",")]
    begun = time.monotonic()
    llm = LLM(**engine(args, max(batches)))
    loaded_s = time.monotonic() - begun
    draw = random.Random(1)

    def rounds(batch, prompt, tokens):
        """Run one batch of random prompts for warming up, and then ``args.rounds`` batches.

        Return, for each batch but the first, its outputs and the numbers of drafted and of accepted tokens.
        """
        vocabulary = 500 if args.cpu else 200_000
        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        found = []
        for _ in range(args.rounds + 1):
            ids = [[draw.randrange(10, vocabulary) for _ in range(prompt)] for _ in range(batch)]
            before = drafts(llm)
            outputs = llm.generate([{"prompt_token_ids": each} for each in ids], params, use_tqdm=False)
            after = drafts(llm)
            found.append((outputs, after[0] - before[0], after[1] - before[1]))
        return found[1:]

    for batch in batches:
        tell(args, batch, args.prompt, rounds(batch, args.prompt, args.tokens), loaded_s=loaded_s, room=room(llm))
    for prompt in filter(None, args.first.split(",")):
        tell(args, 1, int(prompt), rounds(1, int(prompt), 2), loaded_s=loaded_s)


def engine(args, most):
    """Return the arguments of ``vllm.LLM``. ``most`` is the maximum number of sequences in a batch."""
    longest = max([args.prompt, *(int(each) for each in filter(None, args.first.split(",")))])
    found = {
        "model": args.target, "load_format": "auto" if args.real else "dummy", "skip_tokenizer_init": True,
        "max_num_seqs": most, "max_model_len": longest + args.tokens + 64,
        "kv_cache_dtype": args.kv,
        "disable_log_stats": False, "enable_prefix_caching": False,
        "language_model_only": True, "disable_hybrid_kv_cache_manager": True, "max_num_batched_tokens": 8_192,
    }  # fmt: skip
    if args.cpu:
        found |= {"dtype": "float32", "kv_cache_memory_bytes": 1 << 28, "block_size": 32, "enforce_eager": True}
    else:
        found |= {"dtype": "bfloat16", "gpu_memory_utilization": 0.9}
        found |= {"quantization": "fp8"} if args.precision == "fp8" else {}
    if args.draft and args.gamma:
        speculation = {"method": "draft_model", "model": args.draft, "num_speculative_tokens": args.gamma}
        if not args.cpu and args.precision == "fp8":
            speculation["quantization"] = "fp8"
        if not args.cpu and not args.real:  # the CPU's kernels cannot force an acceptance
            rates = [args.alpha**place for place in range(1, args.gamma + 1)]
            speculation |= {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": rates}
        if args.schedule:
            parts = [part.replace(":", "-").split("-") for part in args.schedule.split()]
            speculation["num_speculative_tokens_per_batch_size"] = [[int(each) for each in part] for part in parts]
        found["speculative_config"] = speculation
    return found


def drafts(llm):
    """Return how many tokens were drafted so far, and how many of them were accepted."""
    told = {each.name: each.value for each in llm.get_metrics() if hasattr(each, "value")}
    return tuple(told.get(f"vllm:spec_decode_num_{name}_tokens", 0) for name in ("draft", "accepted"))


def room(llm):
    """Return how many tokens the KV cache can hold; None if vLLM's metrics do not say it."""
    for each in llm.get_metrics():
        labels = getattr(each, "labels", {})
        if "num_gpu_blocks" in labels and str(labels["num_gpu_blocks"]).isdigit():
            return int(labels["num_gpu_blocks"]) * int(labels["block_size"])
    return None


def tell(args, batch, prompt, rounds, *, loaded_s, room=None):
    """Print the figures of one batch size and prompt length as one line.

    ``ms_per_token`` and ``ttft_ms`` are medians over the rounds. The value of a round is the median over its requests.
    ``range`` has the minimum and the maximum of ``ms_per_token`` over the rounds.

    Args:
        args: The options of the command line.
        batch: Number of requests in a batch.
        prompt: Number of tokens of each prompt.
        rounds: For each round, its outputs and the numbers of drafted and of accepted tokens.
        loaded_s: Time that the engine took to load, in seconds.
        room: Number of tokens that the KV cache can hold; None if unknown.
    """
    per_token, ttft = [], []
    for outputs, _, _ in rounds:
        stats = [(output.metrics, len(output.outputs[0].token_ids)) for output in outputs]
        per_token.append(statistics.median((m.last_token_ts - m.first_token_ts) * 1e3 / (n - 1) for m, n in stats))
        ttft.append(statistics.median((m.first_token_ts - m.queued_ts) * 1e3 for m, _ in stats))
    drafted, accepted = sum(each[1] for each in rounds), sum(each[2] for each in rounds)
    line = {
        "target": Path(args.target).name, "draft": args.draft and Path(args.draft).name,
        "gamma": args.gamma, "alpha": args.alpha, "runner": args.runner, "batch": batch, "prompt": prompt,
        "kv": args.kv, "schedule": args.schedule, "room": room, "tokens": len(rounds[0][0][0].outputs[0].token_ids),
        "ms_per_token": statistics.median(per_token), "range": [min(per_token), max(per_token)],
        "ttft_ms": statistics.median(ttft), "accepted": accepted / drafted if drafted else None, "loaded_s": loaded_s,
    }  # fmt: skip
    sys.stdout.write(f"ARM {json.dumps(line)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
