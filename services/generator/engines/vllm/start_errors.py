import re
from collections.abc import Callable, Sequence
from typing import Final

_Sentence = Callable[[re.Match[str]], str]

_KNOWN: Final[tuple[tuple[re.Pattern[str], _Sentence], ...]] = (
    (
        re.compile(
            r"max seq len \((\d+)\).*?\(?([\d.]+) GiB KV cache is needed.*?available KV cache memory \(([\d.]+) GiB\)"
            r"(?:.*?estimated maximum model length is (\d+))?",
            re.DOTALL,
        ),
        lambda found: (
            f"not enough memory: {found[1]} tokens of context need {found[2]} GiB of KV cache and {found[3]} GiB are"
            f" left: set RAILBUS_VLLM_MAX_LEN to at most {found[4] or 'less'}, or give it more (RAILBUS_VLLM_MEMORY,"
            " RAILBUS_VLLM_KV_GIB)"
        ),
    ),
    (
        re.compile(r"Free memory on device .*?\(([\d.]+)/([\d.]+) GiB\)"),
        lambda found: (
            f"not enough memory: {found[1]} of the GPU's {found[2]} GiB are free, less than RAILBUS_VLLM_MEMORY:"
            " lower it, or end other processes on the GPU"
        ),
    ),
    (
        re.compile(r"Available memory on node .*?requested memory for kv \(([\d.]+)", re.DOTALL),
        lambda found: (
            f"not enough memory: the machine has no {found[1]} GiB free for the KV cache: set RAILBUS_VLLM_KV_GIB lower"
        ),
    ),
    (
        re.compile(r"No available memory for the cache blocks"),
        lambda _: (
            "not enough memory: the weights leave none for the KV cache: raise RAILBUS_VLLM_MEMORY, quantise"
            " (RAILBUS_VLLM_QUANTIZATION=fp8), or take a smaller model"
        ),
    ),
    (
        re.compile(r"out of memory|OutOfMemoryError|can't allocate memory|Cannot allocate memory|MemoryError"),
        lambda _: (
            "not enough memory for the model: quantise (RAILBUS_VLLM_QUANTIZATION=fp8), lower RAILBUS_VLLM_MAX_LEN or"
            " RAILBUS_VLLM_MAX_SEQS, or take more GPUs (RAILBUS_VLLM_TENSOR_PARALLEL)"
        ),
    ),
    (
        re.compile(r"Failed core proc\(s\): \{[^}]*-9\b"),
        lambda _: "the system killed the engine while it loaded, probably because memory ran out",
    ),
    (
        re.compile(r"[Mm]odel architectures? \[?'?([\w.]+)'?\]? (?:are|is) not supported|has no vLLM implementation"),
        lambda found: f"this vLLM does not support the architecture {found[1] or 'of this model'}",
    ),
    (
        re.compile(r"model type `([\w.-]+)` but Transformers does not recognize"),
        lambda found: f"this vLLM does not support models of type {found[1]}",
    ),
    (
        re.compile(r"max_model_len \((\d+)\) is greater than the derived max_model_len \(.*?=(\d+)", re.DOTALL),
        lambda found: f"RAILBUS_VLLM_MAX_LEN={found[1]}: the model supports at most {found[2]} tokens",
    ),
    (
        re.compile(r"same vocabulary size"),
        lambda _: (
            "RAILBUS_VLLM_DRAFT: the drafter's vocabulary differs from the target's: use a drafter of the same family"
        ),
    ),
    (
        re.compile(r"No module named '?arctic_inference|Arctic Inference"),
        lambda _: "RAILBUS_VLLM_METHOD=suffix needs another package: pip install arctic-inference",
    ),
    (
        re.compile(r"Unknown quantization method|[Qq]uantization.*?(?:not supported|is not available)"),
        lambda _: "RAILBUS_VLLM_QUANTIZATION: this vLLM does not support it on this machine",
    ),
)
"""Known reasons of a failed start. Each has a pattern and a sentence for the operator. The first pattern that matches
is used, so more specific patterns come first."""

_TRACEBACK_END: Final = re.compile(r"^(?:\([^)]*\) )?(?:[\w]+\.)*(\w*(?:Error|Exception|Exit|Warning))\b:? ?(.*)")
_NOT_THE_CAUSE: Final = re.compile(r"Engine core initialization failed|Failed core proc|resource_tracker|leaked")

MAX_REASON_CHARS: Final = 300


def start_failure_reason(lines: Sequence[str]) -> str:
    """Find in the last lines of vLLM's output why vLLM did not start, and return the reason as one sentence."""
    text = "\n".join(lines)
    for pattern, sentence in _KNOWN:
        found = pattern.search(text)
        if found is not None:
            return sentence(found)
    for line in reversed(lines):
        end = _TRACEBACK_END.match(line.strip())
        if end is not None and not _NOT_THE_CAUSE.search(line):
            return f"vLLM did not start: {end[1]}: {end[2]}"[:MAX_REASON_CHARS]
    return "vLLM did not start and left no reason: RAILBUS_LOG_LEVEL=DEBUG shows its full output"
