"""The settings that ``railbus tune`` tries on each engine, in order, and the default values of these settings."""

from collections.abc import Mapping
from dataclasses import dataclass

from services.tuner.experiment import SettingsChange


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    engine: str
    cores: int
    at_once: int
    gpu: bool = False
    models: tuple[str, ...] = ()
    base: Mapping[str, str]


def defaults(around: Surroundings) -> dict[str, str]:
    return {
        "simulated": {
            "RAILBUS_SIM_GAMMA": "4", "RAILBUS_SIM_PRECISION": "fp8", "RAILBUS_SIM_PREFILL_BUDGET": "2048",
            "RAILBUS_SIM_BATCH": "256", "RAILBUS_SIM_ADAPTIVE": "off",
        },
        "llama": {
            "RAILBUS_LLAMA_THREADS": str(max(1, around.cores // 2)), "RAILBUS_LLAMA_SLOTS": "4",
            "RAILBUS_LLAMA_BATCH": "128", "RAILBUS_LLAMA_KV": "f16", "RAILBUS_LLAMA_PREFIX_CACHE": "on",
            "RAILBUS_LLAMA_SPECULATION": "off",
        },
        "vllm": {
            "RAILBUS_VLLM_MAX_SEQS": "64", "RAILBUS_VLLM_PREFIX_CACHING": "on", "RAILBUS_VLLM_KV_DTYPE": "auto",
            "RAILBUS_VLLM_EAGER": "off", "RAILBUS_VLLM_METHOD": "auto", "RAILBUS_VLLM_QUANTIZATION": "none",
            "RAILBUS_VLLM_OPTIMIZATION": "auto", "RAILBUS_VLLM_BLOCK_SIZE": "0", "RAILBUS_VLLM_BATCHED_TOKENS": "0",
        },
        "openai": {"RAILBUS_UPSTREAM_STEP_USAGE": "off", "RAILBUS_UPSTREAM_BODY": ""},
    }.get(around.engine, {})  # fmt: skip


def candidates(around: Surroundings) -> list[SettingsChange]:
    found = {"simulated": _simulated, "llama": _llama, "vllm": _vllm, "openai": _openai}[around.engine](around)
    return [*found, *_pinning(around)]


def _simulated(_: Surroundings) -> list[SettingsChange]:
    return [
        *(_change(f"gamma {gamma}", "speculation", RAILBUS_SIM_GAMMA=str(gamma)) for gamma in (0, 2, 6)),
        _change("adaptive gamma", "speculation", RAILBUS_SIM_ADAPTIVE="on"),
        _change("precision int4", "quantization", lossy=True, RAILBUS_SIM_PRECISION="int4"),
        *(_change(f"batch {batch}", "batching", RAILBUS_SIM_BATCH=str(batch)) for batch in (64, 256)),
        *(
            _change(f"prefill {budget}", "batching", RAILBUS_SIM_PREFILL_BUDGET=str(budget))
            for budget in (512, 2_048, 8_192)
        ),
    ]


def _llama(around: Surroundings) -> list[SettingsChange]:
    threads = sorted({1, max(1, around.cores // 2), around.cores})
    found = [
        *(_change(f"threads {count}", "pinning", RAILBUS_LLAMA_THREADS=str(count)) for count in threads),
        _change("prefix cache on", "prefix-cache", RAILBUS_LLAMA_PREFIX_CACHE="on"),
        _change(f"slots {around.at_once}", "batching", RAILBUS_LLAMA_SLOTS=str(around.at_once)),
        *(_change(f"prefill {size}", "batching", RAILBUS_LLAMA_BATCH=str(size)) for size in (64, 128, 256, 512)),
        _change("flash attention on", "attention", RAILBUS_LLAMA_FLASH_ATTENTION="on"),
        _change("flash attention off", "attention", RAILBUS_LLAMA_FLASH_ATTENTION="off"),
        _change("n-gram drafting", "speculation", RAILBUS_LLAMA_SPECULATION="ngram"),
        _change("KV q8_0", "kv", lossy=True, RAILBUS_LLAMA_KV="q8_0"),
        _change("KV q4_0", "kv", lossy=True, RAILBUS_LLAMA_KV="q4_0"),
    ]
    return [*found, *_models(around)]


def _vllm(around: Surroundings) -> list[SettingsChange]:
    found = [
        _change("prefix caching on", "prefix-cache", RAILBUS_VLLM_PREFIX_CACHING="on"),
        *(
            _change(f"{count} sequences", "batching", RAILBUS_VLLM_MAX_SEQS=str(count))
            for count in dict.fromkeys((around.at_once, 64, 256))
        ),
        *(
            _change(f"{count} tokens a step", "batching", RAILBUS_VLLM_BATCHED_TOKENS=str(count))
            for count in (512, 2_048, 8_192)
        ),
        _change("compiled", "compilation", RAILBUS_VLLM_EAGER="off"),
        *(_change(f"level {level}", "compilation", RAILBUS_VLLM_OPTIMIZATION=level) for level in ("1", "3")),
        *(_change(f"blocks of {size}", "kv", RAILBUS_VLLM_BLOCK_SIZE=str(size)) for size in (16, 32, 128)),
    ]
    if around.base.get("RAILBUS_VLLM_DRAFT"):
        found += [
            _change(f"gamma {gamma}", "speculation", RAILBUS_VLLM_SPECULATIVE_TOKENS=str(gamma)) for gamma in (2, 4, 6)
        ]
    else:
        found.append(_change("n-gram drafting", "speculation", RAILBUS_VLLM_METHOD="ngram"))
    if around.gpu:
        found += [
            _change("FlashAttention", "attention", RAILBUS_VLLM_ATTENTION_BACKEND="FLASH_ATTN"),
            _change("FlashInfer", "attention", RAILBUS_VLLM_ATTENTION_BACKEND="FLASHINFER"),
            _change("FP8 weights", "quantization", lossy=True, RAILBUS_VLLM_QUANTIZATION="fp8"),
        ]
    else:
        found += [
            _change(f"cores 0-{last}", "pinning", RAILBUS_VLLM_CPU_CORES=f"0-{last}" if last else "0")
            for last in sorted({0, around.cores - 1})
        ]
    kv = _change("KV FP8", "kv", lossy=True, RAILBUS_VLLM_KV_DTYPE="fp8")
    bf16 = _change("BF16", "quantization", lossy=True, RAILBUS_VLLM_DTYPE="bfloat16")
    return [*found, kv, bf16, *_models(around)]


def _openai(_: Surroundings) -> list[SettingsChange]:
    return [
        _change("prompt cache", "prefix-cache", RAILBUS_UPSTREAM_BODY='{"cache_prompt": true}'),
        _change("exact counts", "batching", RAILBUS_UPSTREAM_STEP_USAGE="on"),
    ]


def _models(around: Surroundings) -> list[SettingsChange]:
    return [
        _change(f"model {path.rpartition('/')[2]}", "quantization", lossy=True, RAILBUS_MODEL_PATH=path)
        for path in around.models
    ]


def _pinning(around: Surroundings) -> list[SettingsChange]:
    if around.engine in {"openai", "simulated", "vllm"} or around.cores < 2:
        return []
    half = max(1, around.cores // 2)
    return [_change(f"pinned to {half} cores", "pinning", RAILBUS_GENERATOR_CORES=f"0-{half - 1}" if half > 1 else "0")]


def _change(name: str, item: str, *, lossy: bool = False, **settings: str) -> SettingsChange:
    return SettingsChange(name=name, settings=settings, item=item, lossy=lossy)
