"""What must be in a model's folder, looked at before vLLM takes a minute to find that it is not."""

from pathlib import Path
from typing import Any, Final

import msgspec

from services.runtime.errors import UserError

WEIGHTS: Final = ("*.safetensors", "*.bin", "*.pt")

SLIDING: Final = ("gemma2", "gemma3", "gemma3_text")
"""Model types with sliding-window layers: their caches cannot be grouped once a draft model has them too."""


def checked(folder: Path, variable: str, *, weights: bool = True) -> dict[str, Any]:
    """The folder's ``config.json``.

    Args:
        folder: Of the model.
        variable: That named it.
        weights: Whether it must hold weights.

    Raises:
        UserError: Something is missing or no model's.
    """
    where = f"{variable}={str(folder)!r}"
    if not folder.is_dir():
        raise UserError(f"{where}: there is no such folder; it must hold config.json, a tokenizer and safetensors")
    try:
        config = msgspec.json.decode((folder / "config.json").read_bytes())
    except FileNotFoundError:
        raise UserError(f"{where}: has no config.json, so it is no model's folder") from None
    except (OSError, msgspec.DecodeError) as error:
        raise UserError(f"{where}: its config.json cannot be read ({type(error).__name__})") from None
    if not isinstance(config, dict) or not config.get("architectures"):
        raise UserError(f"{where}: its config.json names no architecture")
    if weights and not any(True for pattern in WEIGHTS for _ in folder.glob(pattern)):
        raise UserError(f"{where}: has a config.json but no weights (*.safetensors): download them, all of them")
    if weights:
        _complete(folder, where)
    return config


def slides(config: dict[str, Any]) -> bool:
    """Whether the model has sliding-window layers as Gemma's."""
    return config.get("model_type") in SLIDING


def _complete(folder: Path, where: str) -> None:
    """Every shard that the index names is there."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return
    try:
        shards = set(msgspec.json.decode(index.read_bytes())["weight_map"].values())
    except (OSError, msgspec.DecodeError, KeyError, AttributeError, TypeError):
        raise UserError(f"{where}: its {index.name} cannot be read") from None
    missing = sorted(shard for shard in shards if not (folder / str(shard)).is_file())
    if missing:
        raise UserError(f"{where}: {len(missing)} of {len(shards)} weight files are missing, the first is {missing[0]}")
