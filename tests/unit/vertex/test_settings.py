"""Test to which addresses the Vertex AI worker may send prompts, and for which it needs credentials."""

import pytest

from services.runtime.errors import UserError
from services.vertex.settings import VertexSettings


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://localhost:9", "http://[::1]:9", "https://127.0.0.1"])
def test_loopback_is_the_emulator(url: str) -> None:
    assert VertexSettings(vertex_url=url).emulated


@pytest.mark.parametrize("url", [None, "https://vertex.internal", "https://10.0.0.1", "https://localhost.evil.example"])
def test_elsewhere_is_not(url: str | None) -> None:
    assert not VertexSettings(vertex_url=url).emulated


@pytest.mark.parametrize(
    "url",
    [
        "vertex", "ftp://x", "http://", "http://vertex.internal", "http://127.0.0.1.evil.example",
        "http://[::1", "http://127.0.0.1:99999", "https://host:port", "https://a..b",
    ],
)  # fmt: skip
def test_wrong_or_unsafe_addresses_are_refused(url: str) -> None:
    with pytest.raises(UserError, match="RAILBUS_VERTEX_URL"):
        VertexSettings(vertex_url=url)
