"""Speed up OpenTelemetry's encoder by caching its protobuf messages for string attributes."""

from functools import lru_cache
from typing import Any, Final

MOST_KEPT: Final = 2_048
"""Maximum number of messages that are kept. The least recently used ones are dropped."""


def keep_encoded_texts() -> bool:
    """Patch the encoder to cache the protobuf messages of string attributes. Return False if it cannot be patched."""
    from opentelemetry.exporter.otlp.proto.common import _internal

    # The encoder spends two thirds of its time on attributes, most of which are the same in every trace. It has no
    # public hook. Messages can be shared, because protobuf copies a message into the one that contains it.
    encode: Any = getattr(_internal, "_encode_key_value", None)
    if encode is None:
        return False
    if hasattr(encode, "kept"):
        return True
    kept = lru_cache(MOST_KEPT)(encode)

    def encode_key_value(key: str, value: Any) -> Any:
        return kept(key, value) if type(value) is str else encode(key, value)

    encode_key_value.kept = kept  # type: ignore[attr-defined]
    _internal._encode_key_value = encode_key_value  # noqa: SLF001 - see above
    return True
