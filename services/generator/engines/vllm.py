"""The production engine: vLLM in this process, with a draft model.

Its computing processes are children; this one turns conversations into tokens, and every engine step of an answer into
a ``Step``. When the engine dies every open answer ends with ``engine_dead``, and so does the process.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any, Final

from schemas.requests import Message, Sampling
from services.generator.engines.vllm_account import Account
from services.generator.engines.vllm_arguments import always_drafts
from services.generator.engines.vllm_settings import VllmSettings
from services.generator.engines.vllm_start import Vllm, in_thread, load, prepared
from services.runtime.errors import UserError
from services.runtime.logging import logger
from services.worker.engine import Done, EngineError, EngineStats, Job, Step

_log = logger("generator")

PRIORITIES: Final = {"interactive": 0, "batch": 1}
"""The lower one is scheduled first, and preempts the higher when the KV cache is full."""

WATCH_S: Final = 1.0
"""Between two looks at whether the engine lives while nobody asks it anything."""

CLOSE_S: Final = 2.0
"""Longest time its processes may take to end; then they are killed. They hold nothing that could be lost."""

FIRST_S: Final = 300.0
"""Longest time the loaded engine may take for its first token: some kernels are compiled for it."""


class VllmEngine:
    """Engine ``vllm``."""

    def __init__(self, settings: VllmSettings) -> None:
        self.name = "vllm"
        self._settings = settings
        self._wanted = prepared(settings)
        self.model = settings.model or (settings.model_path.resolve().name if settings.model_path else self.name)
        self.capacity = settings.vllm_max_seqs
        self._drafts = always_drafts(settings)
        self._speculative = "speculative_config" in self._wanted
        self._vllm: Vllm | None = None
        self._tokenizer: Any = None
        self._limit = 0

    async def start(self) -> None:
        """Loads the weights and has one token said, so that ready means that it answers.

        Raises:
            UserError: Weights, GPU, memory or a chat template are missing, or the settings do not fit the model.
        """
        settings = self._settings
        vllm = self._vllm = await in_thread(
            lambda: load(settings, self._wanted), timeout_s=settings.vllm_start_timeout_s
        )
        self._limit = vllm.engine.model_config.max_model_len
        self._tokenizer = vllm.engine.get_tokenizer()
        if not self._tokenizer.chat_template:
            raise UserError(
                f"{self.model} has no chat template, as base models have none: take the instruction-tuned model"
            )
        try:
            await self._say_a_token()
        except (EngineError, TimeoutError) as error:
            raise UserError(f"engine vllm: {self.model} was loaded but says nothing: {error}") from None
        drafter = self._wanted.get("speculative_config", {}).get("method", "nothing")
        _log.info("vllm: %s; %s drafts; %d tokens, %d answers at most", self.model, drafter, self._limit, self.capacity)

    def resolve(self, model: str) -> str:
        """There is one model.

        Raises:
            EngineError: Another was asked for.
        """
        if model in {"default", self.model}:
            return self.model
        raise EngineError(
            "bad_request", f"this model is not served here; served is {self.model!r}", retryable=False, param="model"
        )

    async def generate(self, job: Job) -> AsyncGenerator[Step | Done, None]:
        """One answer; ``aclose()`` or cancellation aborts it in the engine before its next step."""
        vllm = self._running()
        prompt = self._prompt(job.messages)
        account = Account(len(prompt), drafted=self._drafts, speculative=self._speculative)
        outputs = vllm.engine.generate(
            {"type": "token", "prompt_token_ids": prompt},
            vllm.sampling(**drawn(job.sampling, room=self._limit - len(prompt))),
            request_id=job.run,
            priority=PRIORITIES[job.lane],
        )
        try:
            async for output in outputs:
                step = account.step(output)
                if step is not None:
                    yield step
                if output.finished:
                    yield account.done(output)
                    return
        except vllm.dead:
            raise EngineError("engine_dead", "the engine's process ended", retryable=True) from None
        except vllm.refused as error:  # its message may repeat the prompt
            raise EngineError(
                "bad_request", f"the engine refuses the request ({type(error).__name__})", retryable=False
            ) from None
        finally:
            await outputs.aclose()
        raise EngineError("internal", "the engine ended the answer without saying how", retryable=True)

    async def death(self) -> None:
        """Returns when the engine has died."""
        engine = self._running().engine
        while not engine.errored:  # noqa: ASYNC110 - vLLM tells nobody
            await asyncio.sleep(WATCH_S)

    def stats(self) -> EngineStats:
        """Answers in the engine, running or waiting: it does not say which."""
        return EngineStats(running=0 if self._vllm is None else self._vllm.engine.get_num_unfinished_requests())

    async def close(self) -> None:
        """Ends the engine's processes."""
        vllm, self._vllm = self._vllm, None
        if vllm is not None:
            if vllm.engine.output_handler is not None:
                vllm.engine.output_handler.cancel()  # it would report the end as a failure
            logging.getLogger("vllm").setLevel(logging.ERROR)  # it warns of each process that it has to kill
            with contextlib.suppress(UserError):
                await in_thread(partial(vllm.engine.shutdown, timeout=CLOSE_S), timeout_s=CLOSE_S + 2)
            vllm.engine.shutdown = lambda: None  # its finalizer calls this again, when half the interpreter is gone

    async def _say_a_token(self) -> None:
        job = Job(
            request_id="start", run="start", model=self.model,
            messages=(Message(role="user", content="Hello"),), sampling=Sampling(max_tokens=1),
        )  # fmt: skip
        async with asyncio.timeout(FIRST_S):
            async for _ in self.generate(job):
                pass

    def _running(self) -> Vllm:
        if self._vllm is None:
            raise RuntimeError("start() comes first")
        return self._vllm

    def _prompt(self, messages: tuple[Message, ...]) -> list[int]:
        """The conversation in the model's own form.

        Raises:
            EngineError: ``bad_request``: the template refuses it, or it is too long.
        """
        turns = [{"role": each.role, "content": each.content} for each in messages]
        try:
            tokens = self._tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
        except Exception as error:  # noqa: BLE001 - templates raise what they like, and it may hold the prompt
            raise EngineError(
                "bad_request",
                f"the model's chat template refuses this conversation ({type(error).__name__}): roles must take turns",
                retryable=False,
            ) from None
        if len(tokens) >= self._limit:
            raise EngineError(
                "bad_request",
                f"the prompt is too long: {len(tokens)} tokens, the limit is {self._limit} tokens",
                retryable=False,
            )
        return list(tokens)


def drawn(sampling: Sampling, *, room: int) -> dict[str, Any]:
    """Keyword arguments of ``SamplingParams``; at most ``room`` tokens, which is what the context leaves."""
    found: dict[str, Any] = {
        "max_tokens": min(sampling.max_tokens, room),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
    }
    if sampling.seed is not None:
        found["seed"] = sampling.seed
    if sampling.stop:
        found["stop"] = list(sampling.stop)
    return found
