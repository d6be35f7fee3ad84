"""vLLM's executor without the call that fetches drafts after a step that drafted nothing. Imported by vLLM alone.

With n-gram and suffix drafting vLLM fetches the drafts from its worker process after every step, even if the batch is
too large for drafting. On the CPU the fetch is one more round trip between two processes that spin on the same cores.
``tests/bench/RESULTS.md`` has the measured cost.
"""

from typing import Any

from vllm.v1.executor.multiproc_executor import MultiprocExecutor


class SkipDraftExecutor(MultiprocExecutor):  # type: ignore[misc]  # vLLM is in another environment
    """An executor that fetches drafts only after a step that drafted."""

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        """Run a step, and remember whether it drafts."""
        self._drafts = scheduler_output.num_spec_tokens_to_schedule > 0
        return super().execute_model(scheduler_output, non_block)

    def take_draft_token_ids(self) -> Any:
        """Return the tokens drafted in the last step; None, which means no drafts, if it did not draft."""
        return super().take_draft_token_ids() if self._drafts else None
