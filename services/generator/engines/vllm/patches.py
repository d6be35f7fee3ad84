"""Fix a defect of vLLM 0.32: with speculation on the CPU, vLLM samples with a wrong temperature, top-k and top-p.

The defect affects neither greedy sampling nor GPUs.
"""

from typing import Any, Final, Self

from services.generator.engines.vllm.exit_with_parent import ExitWithParentWorker

PATCHED_WORKER: Final = "services.generator.engines.vllm.patches.PatchedWorker"
"""Value for vLLM's ``worker_extension_cls``: vLLM instantiates the class in every worker process."""

SKIP_DRAFT_EXECUTOR: Final = "services.generator.engines.vllm.executor.SkipDraftExecutor"
"""Value for vLLM's ``distributed_executor_backend``: vLLM instantiates the class in its scheduler process."""


def expand_batch_to_tokens(values: Any, ends: Any, total: int, replace_from: int = 0, replace_to: int = 0) -> Any:
    """Return one value for each token: the value of the request to which the token belongs.

    Args:
        values: One value for each request.
        ends: For each request, the index after its last token.
        total: Number of tokens of all requests.
        replace_from: A value that is replaced by ``replace_to`` in the result.
        replace_to: The value to return instead of ``replace_from``.
    """
    replaced = values.masked_fill(values == replace_from, replace_to)
    counts = ends.long().diff(prepend=ends.new_zeros(1).long())
    return replaced.repeat_interleave(counts, output_size=total)


def apply_patches() -> None:
    from vllm.v1.sample import rejection_sampler

    # vLLM's CPU kernel writes its result into a copy that is never read, and uninitialised memory is then used as the
    # temperature. ``tests/vllm/test_lossless.py`` shows the defect and the fix.
    rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens


class PatchedWorker(ExitWithParentWorker):
    """A vLLM worker extension that repairs the defect described in this module."""

    def __new__(cls, *_args: object, **_kwargs: object) -> Self:
        apply_patches()
        return super().__new__(cls)
