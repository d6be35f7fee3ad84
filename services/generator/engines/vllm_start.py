"""Loads vLLM in a thread: it takes seconds to minutes, and blocks all the while."""

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from services.generator.engines.vllm_arguments import arguments, environment
from services.generator.engines.vllm_files import checked, slides
from services.generator.engines.vllm_hush import Hush
from services.generator.engines.vllm_mend import EXECUTOR, MENDED
from services.generator.engines.vllm_owner import OWNED, claim
from services.generator.engines.vllm_refusals import reason
from services.generator.engines.vllm_settings import VllmSettings
from services.runtime.errors import UserError

Loaded = TypeVar("Loaded")

INSTALL: Final = "pip install -r requirements/vllm.txt, or on a machine without a GPU: make .venv-vllm/.ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class Vllm:
    """What is used of vLLM.

    Attributes:
        engine: ``AsyncLLM``, running.
        sampling: ``SamplingParams``, to be called.
        dead: Raised by every answer once the engine has died.
        refused: Raised by an answer whose request is at fault.
    """

    engine: Any
    sampling: Callable[..., Any]
    dead: type[Exception]
    refused: type[Exception]


def prepared(settings: VllmSettings) -> dict[str, Any]:
    """Arguments for vLLM's engine, once everything that can be seen without it was looked at.

    Raises:
        UserError: A setting is wrong, or a file is missing.
    """
    target, draft = settings.model_path, settings.vllm_draft
    if target is None:
        raise UserError("engine vllm needs RAILBUS_MODEL_PATH, the folder of a model: railbus up --model-path DIR")
    has_weights = settings.vllm_load_format != "dummy"
    checked(target, "RAILBUS_MODEL_PATH", weights=has_weights)
    gemma_drafts_gemma = False
    if draft is not None:
        gemma_drafts_gemma = slides(checked(draft, "RAILBUS_VLLM_DRAFT", weights=has_weights))
    return arguments(settings, target, gemma_drafts_gemma=gemma_drafts_gemma)


def load(settings: VllmSettings, wanted: dict[str, Any]) -> Vllm:
    """A running engine. Blocks.

    Raises:
        UserError: It cannot run here with these settings and files; the message says why.
    """
    os.environ.update(environment(settings, os.environ))
    claim()
    loud = logging.getLogger("railbus").isEnabledFor(logging.DEBUG)
    if not loud:
        logging.getLogger("vllm").setLevel(logging.WARNING)
    with Hush(loud=loud) as hush:
        try:
            return _engine(settings, wanted)
        except UserError:
            raise
        except Exception as error:  # noqa: BLE001 - its errors have no common type, and each is the operator's to mend
            said = [*hush.said, *f"{type(error).__name__}: {error}".splitlines()]
            raise UserError(f"engine vllm: {reason(said)}") from None


def _engine(settings: VllmSettings, wanted: dict[str, Any]) -> Vllm:
    try:
        from vllm import AsyncEngineArgs, SamplingParams
        from vllm.exceptions import VLLMClientError
        from vllm.platforms import current_platform
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.async_llm import AsyncLLM
        from vllm.v1.engine.exceptions import EngineDeadError
    except ImportError as error:
        raise UserError(f"engine vllm needs vLLM ({error.name or 'a part of it'} is missing): {INSTALL}") from None
    found = current_platform.device_type
    if not found or (settings.vllm_device == "gpu" and found == "cpu"):
        build = "this vLLM is built for the CPU" if found == "cpu" else "vLLM finds none"
        raise UserError(
            f"engine vllm: no GPU ({build}): check the driver and CUDA_VISIBLE_DEVICES; on the CPU use the CPU build"
            " and RAILBUS_VLLM_DEVICE=cpu"
        )
    if settings.vllm_device == "cpu" and found != "cpu":
        raise UserError(f"RAILBUS_VLLM_DEVICE=cpu: this vLLM is built for {found}; install its CPU build")
    if found == "cpu" and not settings.vllm_kv_gib:
        wanted = wanted | {"kv_cache_memory_bytes": 1 << 30}  # else it takes a share of all memory there is
    mended = found == "cpu" and "speculative_config" in wanted
    if mended:
        wanted = wanted | {"distributed_executor_backend": EXECUTOR}
    return Vllm(
        engine=AsyncLLM.from_engine_args(AsyncEngineArgs(**wanted, worker_extension_cls=MENDED if mended else OWNED)),
        sampling=partial(SamplingParams, output_kind=RequestOutputKind.DELTA),
        dead=EngineDeadError,
        refused=VLLMClientError,
    )


async def in_thread(work: Callable[[], Loaded], *, timeout_s: float) -> Loaded:
    """What a blocking call returns, from a thread that does not keep the process from ending.

    Raises:
        UserError: It took too long.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[Loaded] = loop.create_future()

    def settle(value: Loaded | None, error: BaseException | None) -> None:
        if not result.done():
            if error is not None:
                result.set_exception(error)
            else:
                result.set_result(value)  # type: ignore[arg-type]  # None only if Loaded is None

    def tell(value: Loaded | None, error: BaseException | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, value, error)

    def run() -> None:
        try:
            tell(work(), None)
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
            tell(None, error)

    threading.Thread(target=run, name="engine-start", daemon=True).start()
    try:
        async with asyncio.timeout(timeout_s):
            return await result
    except TimeoutError:
        raise UserError(
            f"engine vllm was not ready after {timeout_s:.0f} s: raise RAILBUS_VLLM_START_TIMEOUT_S, or see why with"
            " RAILBUS_LOG_LEVEL=DEBUG"
        ) from None
