"""Fix a defect of vLLM's CPU build inside its own processes.

With speculation, vLLM 0.32 repeats each request's temperature, top-k and top-p for each of its drafted tokens. The CPU
kernel for this writes the result into a copy that is never read, and uninitialised memory is used as the temperature.
So answers do not follow the target's distribution, unless sampling is greedy. ``tests/vllm/test_lossless.py`` shows the
defect and the fix. GPUs use other kernels.
"""

from typing import Any, Final, Self

from services.generator.engines.vllm.exit_with_parent import ExitWithParentWorker

PATCHED_WORKER: Final = "services.generator.engines.vllm.patches.PatchedWorker"
"""Value for vLLM's ``worker_extension_cls``: vLLM instantiates the class in every worker process."""

SKIP_DRAFT_EXECUTOR: Final = "services.generator.engines.vllm.executor.SkipDraftExecutor"
"""Value for vLLM's ``distributed_executor_backend``: vLLM instantiates the class in its scheduler process."""


def expand_batch_to_tokens(values: Any, ends: Any, total: int, replace_from: int = 0, replace_to: int = 0) -> Any:
    """Repeat the value of each request once per token of the request.

    Args:
        values: One value per request.
        ends: For each request, the index after its last token.
        total: Number of tokens of all requests.
        replace_from: The value to replace. vLLM replaces a temperature of 0, because it divides by the temperature.
        replace_to: The new value.
    """
    replaced = values.masked_fill(values == replace_from, replace_to)
    counts = ends.long().diff(prepend=ends.new_zeros(1).long())
    return replaced.repeat_interleave(counts, output_size=total)


def apply_patches() -> None:
    """Replace vLLM's ``expand_batch_to_tokens`` in this process."""
    from vllm.v1.sample import rejection_sampler

    rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens


class PatchedWorker(ExitWithParentWorker):
    """A worker extension that applies the patches, and ends the worker's process when its parent process ends."""

    def __new__(cls, *_args: object, **_kwargs: object) -> Self:
        apply_patches()
        return super().__new__(cls)
