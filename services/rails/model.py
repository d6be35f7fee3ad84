"""The jailbreak classifier itself: a sentence embedding, and a network of two hidden layers on it."""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from services.rails.weights import Missing, model_path, tokenizer_and_network

WINDOW_TOKENS: Final = 126
"""The classifier was made to read 128 tokens, of which two are the text's begin and end marks."""

STRIDE_TOKENS: Final = 94
"""Two windows share 32 tokens, so that no attack of one sentence is cut by both."""


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
