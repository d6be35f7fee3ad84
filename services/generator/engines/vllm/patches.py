"""Fix a defect of vLLM's CPU build inside its own processes.

vLLM 0.32 expands each request's temperature, top-k and top-p to the tokens drafted for it. Its CPU kernel writes the
result into a copy that is never read, so uninitialised memory is used as the temperature. So with speculation and
non-greedy sampling, answers do not follow the target's distribution. ``tests/vllm/test_lossless.py`` shows the defect
and the fix. GPUs use other kernels.
"""

from typing import Any, Final, Self

from services.generator.engines.vllm.exit_with_parent import ExitWithParentWorker

PATCHED_WORKER: Final = "services.generator.engines.vllm.patches.PatchedWorker"
"""Value for vLLM's ``worker_extension_cls``: vLLM instantiates the class in every worker process."""

SKIP_DRAFT_EXECUTOR: Final = "services.generator.engines.vllm.executor.SkipDraftExecutor"
"""Value for vLLM's ``distributed_executor_backend``: vLLM instantiates the class in its scheduler process."""


def expand_batch_to_tokens(values: Any, ends: Any, total: int, replace_from: int = 0, replace_to: int = 0) -> Any:
    """Repeat each request's value for every token drafted for it.

    Args:
        values: One value per request.
        ends: Index after each request's last token.
        total: Tokens of all requests.
        replace_from: The value to replace. vLLM replaces a temperature of 0, because it divides by the temperature.
        replace_to: Its replacement.
    """
    replaced = values.masked_fill(values == replace_from, replace_to)
    counts = ends.long().diff(prepend=ends.new_zeros(1).long())
    return replaced.repeat_interleave(counts, output_size=total)


def apply_patches() -> None:
    """Replace vLLM's function in this process."""
    from vllm.v1.sample import rejection_sampler

    rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens


class PatchedWorker(ExitWithParentWorker):
    """A worker extension that applies the patches, and ends the worker's process with its parent."""

    def __new__(cls, *_args: object, **_kwargs: object) -> Self:
        """Apply the patches before the worker is created."""
        apply_patches()
        return super().__new__(cls)
