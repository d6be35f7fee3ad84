"""Test that commands which reach an edge over HTTPS say what to do if they do not trust its certificate."""

import asyncio
import ssl

import pytest

from services.cli.client.answer_ops import AnswerError
from services.cli.client.chat_request import ChatRequest
from services.cli.client.edge_client import EdgeAddress, ask_edge
from services.cli.commands.doctor import _http
from tests.support.certificates import certificate


async def test_a_certificate_that_is_not_trusted_is_said_with_the_remedy(tmp_path):
    key, cert = certificate(tmp_path, "edge")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(AnswerError, match=r"not trusted \(.*self-signed certificate.*\): .* in SSL_CERT_FILE$"):
            await ask_edge(ChatRequest(prompt="hi"), EdgeAddress(url), lambda _: None)
        check = await _http("edge", url, needed=True)
    assert (check.good, check.found) == (False, "certificate not trusted")
    assert "SSL_CERT_FILE" in check.remedy
