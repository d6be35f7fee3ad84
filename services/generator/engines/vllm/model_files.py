"""Check a model's folder before vLLM is loaded, because loading vLLM takes up to a minute."""

from pathlib import Path
from typing import Any, Final

import msgspec

from services.runtime.errors import UserError

WEIGHT_PATTERNS: Final = ("*.safetensors", "*.bin", "*.pt")

SLIDING_WINDOW_TYPES: Final = ("gemma2", "gemma3", "gemma3_text")
"""Model types with sliding-window layers. vLLM cannot group their KV caches if the draft model also has such layers."""


def read_model_config(folder: Path, variable: str, *, weights: bool = True) -> dict[str, Any]:
    """Check a model's folder, and return the content of its ``config.json``.

    Args:
        folder: The model's folder.
        variable: The environment variable that names the folder, for error messages.
        weights: Whether the folder must contain weights.

    Raises:
        UserError: A file is missing or invalid.
    """
    where = f"{variable}={str(folder)!r}"
    if not folder.is_dir():
        raise UserError(f"{where}: there is no such folder; it must hold config.json, a tokenizer and safetensors")
    try:
        config = msgspec.json.decode((folder / "config.json").read_bytes())
    except FileNotFoundError:
        raise UserError(f"{where}: has no config.json, so it is not a model's folder") from None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{where}: its config.json cannot be read ({type(error).__name__})") from None
    if not isinstance(config, dict) or not config.get("architectures"):
        raise UserError(f"{where}: its config.json names no architecture")
    if weights and not any(True for pattern in WEIGHT_PATTERNS for _ in folder.glob(pattern)):
        raise UserError(f"{where}: has a config.json but no weights (*.safetensors): download them, all of them")
    if weights:
        _require_all_shards(folder, where)
    return config


def uses_sliding_window(config: dict[str, Any]) -> bool:
    return config.get("model_type") in SLIDING_WINDOW_TYPES


def _require_all_shards(folder: Path, where: str) -> None:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return
    try:
        shards = set(msgspec.json.decode(index.read_bytes())["weight_map"].values())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, KeyError, AttributeError, TypeError):
        raise UserError(f"{where}: its {index.name} cannot be read") from None
    missing = sorted(shard for shard in shards if not (folder / str(shard)).is_file())
    if missing:
        raise UserError(f"{where}: {len(missing)} of {len(shards)} weight files are missing, the first is {missing[0]}")
