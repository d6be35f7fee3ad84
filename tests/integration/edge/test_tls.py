"""Test that an edge with a TLS certificate speaks only HTTPS. Test who may read metrics and the list of models."""

import asyncio
import hashlib
import shutil
import ssl
from urllib.parse import urlsplit

import aiohttp
import pytest

from services.runtime.errors import UserError
from tests.integration.edge.lab import ASK, PATIENCE_S
from tests.support.certificates import certificate

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    key, cert = certificate(folder, "edge")
    return key, cert, ssl.create_default_context(cafile=cert)


@needs_openssl
async def test_streams_and_websockets_are_encrypted(lab, made):
    key, cert, trusting = made
    url = await lab.edge(edge_tls_cert=cert, edge_tls_key=key)
    assert url.startswith("https://127.0.0.1:")
    answering = asyncio.create_task(lab.answer("Hello ", "world"))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusting)) as http:
        async with http.post(f"{url}/v1/chat/completions", json=ASK | {"stream": True}) as response:
            assert response.status == 200
            assert b"world" in await response.read()
        await answering
        answering = asyncio.create_task(lab.answer("Hello ", "world"))
        async with http.ws_connect(f"{url}/v1/stream", origin=url) as socket:
            await socket.send_json({"type": "ask"} | ASK)
            said = ""
            while "world" not in said:
                said += await socket.receive_str()
        assert '"accepted"' in said
        await answering


@needs_openssl
async def test_plain_http_old_tls_and_strangers_get_nothing(lab, made):
    key, cert, _ = made
    url = await lab.edge(edge_tls_cert=cert, edge_tls_key=key)
    port = urlsplit(url).port
    with pytest.raises((aiohttp.ClientError, ConnectionError)):
        await lab.http.get(f"http://127.0.0.1:{port}/healthz")
    with pytest.raises(aiohttp.ClientConnectorCertificateError):
        await lab.http.get(f"{url}/healthz")
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.open_connection("127.0.0.1", port, ssl=old)


@needs_openssl
async def test_a_client_that_does_not_finish_the_handshake_is_disconnected(lab, made):
    key, cert, _ = made
    url = await lab.edge(edge_tls_cert=cert, edge_tls_key=key, request_timeout_ms=300)
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
    async with asyncio.timeout(PATIENCE_S):
        assert await reader.read() == b""
    writer.close()


@needs_openssl
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"edge_tls_key": "key"}, "RAILBUS_EDGE_TLS_KEY needs RAILBUS_EDGE_TLS_CERT"),
        ({"edge_tls_cert": "nowhere"}, "RAILBUS_EDGE_TLS_CERT=.*nowhere: No such file"),
        ({"edge_tls_cert": "cert"}, "RAILBUS_EDGE_TLS_CERT=.*; give PEM files of a certificate and of its key"),
        ({"edge_tls_cert": "cert", "edge_tls_key": "cert"}, "RAILBUS_EDGE_TLS_KEY=.*give PEM files"),
    ],
)
async def test_a_mistake_in_the_files_is_one_sentence(lab, made, tmp_path, settings, message):
    files = {"key": made[0], "cert": made[1], "nowhere": tmp_path / "nowhere"}
    with pytest.raises(UserError, match=message):
        await lab.edge(**{name: files[which] for name, which in settings.items()})


async def test_metrics_need_the_operators_leave_and_models_are_a_tenants_own(lab, tmp_path):
    keys = tmp_path / "keys.toml"
    hashes = {name: hashlib.sha256(f"{name}-key".encode()).hexdigest() for name in ("acme", "umbrella", "operator")}
    keys.write_text("[keys]\n" + "".join(f'"{digest}" = "{name}"\n' for name, digest in hashes.items()))
    url = await lab.edge(api_keys_file=str(keys), metrics_tenants="operator, monitor")
    answering = asyncio.create_task(lab.answer("Hello ", "world"))

    async def get(path, tenant):
        async with lab.http.get(url + path, headers={"Authorization": f"Bearer {tenant}-key"}) as response:
            return response.status, await response.text()

    body = {"headers": {"Authorization": "Bearer acme-key"}, "json": ASK}
    async with lab.http.post(f"{url}/v1/chat/completions", **body) as response:
        assert response.status == 200
    await answering
    status, text = await get("/metrics", "operator")
    assert status == 200
    assert "acme" not in text, "sums over tenants, and no tenant's name"
    status, text = await get("/metrics", "acme")
    assert (status, "metrics_not_allowed" in text) == (403, True)
    assert '"tiny"' in (await get("/v1/models", "acme"))[1]
    assert '"tiny"' not in (await get("/v1/models", "umbrella"))[1]
    assert (await get("/v1/models/tiny", "umbrella"))[0] == 404
