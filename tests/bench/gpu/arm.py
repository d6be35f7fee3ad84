"""One arm: one engine, some batch sizes; a line of JSON each. Run by ``run.py`` as a process of its own."""

import argparse
import json
import os
import random
import statistics
import sys
import time
from pathlib import Path


def main():
    """``python arm.py --help``."""
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
    parser.add_argument("--cpu", action="store_true")
    args = parser.parse_args()
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    os.environ["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1" if args.runner == "v2" else "0"
    measure(args)


def measure(args):
    """Loads once, then measures each batch size."""
    from vllm import LLM, SamplingParams

    batches = [int(each) for each in args.batches.split(",")]
    begun = time.monotonic()
    llm = LLM(**engine(args, max(batches)))
    loaded_s = time.monotonic() - begun
    vocabulary = 500 if args.cpu else 200_000
    params = SamplingParams(temperature=0.0, max_tokens=args.tokens, ignore_eos=True, detokenize=False)
    draw = random.Random(1)
    for number, batch in enumerate([min(batches), *batches]):
        rounds = []
        for _ in range(args.rounds):
            prompts = [
                {"prompt_token_ids": [draw.randrange(10, vocabulary) for _ in range(args.prompt)]} for _ in range(batch)
            ]
            before = drafts(llm)
            outputs = llm.generate(prompts, params, use_tqdm=False)
            after = drafts(llm)
            rounds.append((outputs, after[0] - before[0], after[1] - before[1]))
        if number:  # the first one was for warming up
            tell(args, batch, rounds, loaded_s)


def engine(args, most):
    """Arguments of the engine."""
    found = {
        "model": args.target, "load_format": "dummy", "skip_tokenizer_init": True, "max_num_seqs": most,
        "max_model_len": args.prompt + args.tokens + 64, "disable_log_stats": False, "enable_prefix_caching": False,
        "language_model_only": True, "disable_hybrid_kv_cache_manager": True, "max_num_batched_tokens": 8_192,
    }  # fmt: skip
    if args.cpu:
        found |= {"dtype": "float32", "kv_cache_memory_bytes": 1 << 28, "block_size": 32, "enforce_eager": True}
    else:
        found |= {"quantization": "fp8", "dtype": "bfloat16", "gpu_memory_utilization": 0.9}
    if args.draft and args.gamma:
        speculation = {"method": "draft_model", "model": args.draft, "num_speculative_tokens": args.gamma}
        if not args.cpu:  # the CPU's kernels cannot force an acceptance
            rates = [args.alpha**place for place in range(1, args.gamma + 1)]
            speculation |= {
                "quantization": "fp8", "rejection_sample_method": "synthetic", "synthetic_acceptance_rates": rates,
            }  # fmt: skip
        found["speculative_config"] = speculation
    return found


def drafts(llm):
    """Tokens drafted and accepted so far."""
    told = {each.name: each.value for each in llm.get_metrics() if hasattr(each, "value")}
    return tuple(told.get(f"vllm:spec_decode_num_{name}_tokens", 0) for name in ("draft", "accepted"))


def tell(args, batch, rounds, loaded_s):
    """Medians over requests of a round, then over rounds; the spread is the rounds' range."""
    per_token, ttft = [], []
    for outputs, _, _ in rounds:
        stats = [(output.metrics, len(output.outputs[0].token_ids)) for output in outputs]
        per_token.append(statistics.median((m.last_token_ts - m.first_token_ts) * 1e3 / (n - 1) for m, n in stats))
        ttft.append(statistics.median((m.first_token_ts - m.queued_ts) * 1e3 for m, _ in stats))
    drafted, accepted = sum(each[1] for each in rounds), sum(each[2] for each in rounds)
    line = {
        "target": Path(args.target).name, "draft": args.draft and Path(args.draft).name,
        "gamma": args.gamma, "alpha": args.alpha, "runner": args.runner, "batch": batch, "prompt": args.prompt,
        "tokens": args.tokens, "ms_per_token": statistics.median(per_token), "range": [min(per_token), max(per_token)],
        "ttft_ms": statistics.median(ttft), "accepted": accepted / drafted if drafted else None, "loaded_s": loaded_s,
    }  # fmt: skip
    sys.stdout.write(f"ARM {json.dumps(line)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
