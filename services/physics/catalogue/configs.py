"""Read the shape of a model from its ``config.json`` in the format of Hugging Face."""

from collections.abc import Mapping
from typing import Any, Final

from services.physics.catalogue.models import Model
from services.physics.checks import MOST

# Published configurations omit the values that equal their class's default (transformers, ``Gemma3TextConfig``).
_GEMMA3_DEFAULTS: Final[Mapping[str, Any]] = {
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262_208,
    "sliding_window": 4096, "sliding_window_pattern": 6, "tie_word_embeddings": True,
}  # fmt: skip
_GEMMA2_DEFAULTS: Final[Mapping[str, Any]] = {
    "sliding_window": 4096, "sliding_window_pattern": 2, "tie_word_embeddings": True,
}  # fmt: skip
_DENSE_DEFAULTS: Final[Mapping[str, Any]] = {"tie_word_embeddings": False}

_DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "gemma3": _GEMMA3_DEFAULTS,
    "gemma3_text": _GEMMA3_DEFAULTS,
    "gemma2": _GEMMA2_DEFAULTS,
    "llama": _DENSE_DEFAULTS,
    "mistral": _DENSE_DEFAULTS,
    "mixtral": _DENSE_DEFAULTS,
    "qwen2": _DENSE_DEFAULTS,
    "qwen3": _DENSE_DEFAULTS,
}


def model_from_config(config: Mapping[str, Any], *, name: str, source: str = "config.json") -> Model:
    """Return the model that a ``config.json`` describes.

    ``source`` says where the numbers come from. The returned model has this text in ``Model.source``.

    Raises:
        ValueError: The ``model_type`` is not supported, or a field is missing or wrong.
    """
    kind = config.get("model_type")
    defaults = _DEFAULTS.get(kind) if isinstance(kind, str) else None
    if defaults is None:
        raise ValueError(f"{name}: model_type {kind!r} is not supported; supported are {', '.join(_DEFAULTS)}")
    text = config.get("text_config", {}) if kind == "gemma3" else config
    if not isinstance(text, Mapping):
        raise ValueError(f"{name}: text_config must be an object")  # noqa: TRY004 - it is a value in a file
    shape = {**defaults, **text}
    layers, heads = _whole(shape, "num_hidden_layers", name), _whole(shape, "num_attention_heads", name)
    hidden = _whole(shape, "hidden_size", name)
    shape.setdefault("num_key_value_heads", heads)
    if shape.get("head_dim") is None:  # null in some configurations, which means this quotient
        shape["head_dim"] = hidden // heads
    global_layers = _global_layers(shape, layers)
    return Model(
        name=name,
        layers=layers,
        global_layers=global_layers,
        window=_whole(shape, "sliding_window", name) if global_layers < layers else None,
        hidden=hidden,
        intermediate=_whole(shape, "intermediate_size", name),
        heads=heads,
        kv_heads=_whole(shape, "num_key_value_heads", name),
        head_dim=_whole(shape, "head_dim", name),
        vocab=_whole(shape, "vocab_size", name),
        tied=bool(shape["tie_word_embeddings"]),
        source=source,
        experts=_whole(shape, "num_local_experts", name) if kind == "mixtral" else 1,
        active_experts=_whole(shape, "num_experts_per_tok", name) if kind == "mixtral" else 1,
    )


def _global_layers(shape: Mapping[str, Any], layers: int) -> int:
    listed = shape.get("layer_types")
    if isinstance(listed, list):
        return sum(kind == "full_attention" for kind in listed)
    # Every n-th layer has full attention.
    pattern = shape.get("sliding_window_pattern")
    return layers // pattern if isinstance(pattern, int) and pattern > 1 else layers


def _whole(shape: Mapping[str, Any], field: str, name: str) -> int:
    value = shape.get(field)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}: config.json needs {field} as a whole number above 0, not {value!r}")
    if value > MOST:
        raise ValueError(f"{name}: config.json needs {field} of at most {MOST:,}")
    return value
