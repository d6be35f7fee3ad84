"""Cache the protobuf messages that OpenTelemetry's encoder builds for attributes with repeated texts.

The encoder spends two thirds of its time on attributes, and most attributes are the same in every trace. The encoder
has no public hook, so this module replaces one of its private functions. If the installed version lacks this function,
nothing is replaced.
"""

from functools import lru_cache
from typing import Any, Final

MOST_KEPT: Final = 2_048
"""Maximum number of messages that are kept. The least recently used ones are dropped."""


def keep_encoded_texts() -> bool:
    """Make the encoder reuse the messages of attributes whose values are texts; return whether this is possible.

    It is not possible if the installed version of OpenTelemetry lacks the private function that is replaced. One
    message can be used many times, because protobuf copies it into the message that contains it.
    """
    from opentelemetry.exporter.otlp.proto.common import _internal

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
