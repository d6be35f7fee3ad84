"""vLLM's executor, changed so that it fetches no drafts after a step that drafted nothing. Only vLLM imports it.

With n-gram and suffix drafting, vLLM fetches the drafts from its worker process after every step, even if the batch is
too large for drafting. On the CPU, each fetch is an additional round trip between two processes that busy-wait on the
same cores. ``tests/bench/RESULTS.md`` has the measured cost.
"""

from typing import Any

from vllm.v1.executor.multiproc_executor import MultiprocExecutor


class SkipDraftExecutor(MultiprocExecutor):  # type: ignore[misc]  # vLLM is installed in another environment
    """An executor that fetches drafts only after a step that drafted."""

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        """Run a step, and remember whether it drafts."""
        self._drafts = scheduler_output.num_spec_tokens_to_schedule > 0
        return super().execute_model(scheduler_output, non_block)

    def take_draft_token_ids(self) -> Any:
        """Return the tokens drafted in the last step, or None if that step did not draft."""
        return super().take_draft_token_ids() if self._drafts else None
