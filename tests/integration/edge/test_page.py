"""Tests of the web pages, the health probes and the list of models. The pages load nothing from other origins."""

import re

import pytest
from yarl import URL

PAGES = {"/": {"/app.js", "/style.css"}, "/ledger": {"/ledger.js", "/charts.js", "/ledger.css", "/style.css"}}
PARTS = sorted({*PAGES, *(part for parts in PAGES.values() for part in parts)})


@pytest.fixture
async def parts(lab):
    url = await lab.edge()
    found = {}
    for path in PARTS:
        async with lab.http.get(url + path) as response:
            assert response.status == 200
            found[path] = (response.headers, await response.text())
    return found


async def test_the_content_security_policy_is_strict(parts):
    for headers, _ in parts.values():
        policy = dict(rule.strip().split(" ", 1) for rule in headers["Content-Security-Policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == "'none'"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "Access-Control-Allow-Origin" not in headers


async def test_nothing_is_loaded_from_other_origins(parts):
    for _, text in parts.values():
        addresses = set(re.findall(r"https?://[^\"'\s)]+", text))
        assert addresses <= {"http://www.w3.org/2000/svg"}


async def test_the_policy_leaves_it_working(parts):
    """The pages have no inline scripts, styles or event handlers, which their Content-Security-Policy blocks."""
    for path, used in PAGES.items():
        _, page = parts[path]
        assert not re.search(r"<script(?![^>]*\ssrc=)[^>]*>", page)
        assert not re.search(r"<style|\sstyle=|\son\w+=", page)
        assert set(re.findall(r"(?:src|href)=\"(/[^\"]*)\"", page)) - set(PAGES) == used


@pytest.mark.parametrize(("path", "source"), [("/", "/app.js"), ("/ledger", "/ledger.js")])
async def test_the_script_uses_only_ids_of_the_page(parts, path, source):
    _, page = parts[path]
    _, script = parts[source]
    named = set(re.findall(r"\$\(\"([a-z-]+)\"\)", script))
    if path == "/":
        named |= set(re.findall(r"say\(\"([a-z-]+)\"", script))
    assert named
    assert named <= set(re.findall(r"\sid=\"([a-z-]+)\"", page))
    labels = re.findall(r"<(?:input|select|textarea)[^>]*\sid=\"([a-z-]+)\"", page)
    for control in labels:  # each has a label around it or for it
        around = rf"<label[^>]*>(?:(?!</label>).)*id=\"{control}\""
        assert re.search(rf"<label[^>]*for=\"{control}\"|{around}", page, re.DOTALL)


async def test_the_page_shows_the_operators_notice(lab):
    for notice, shown in ((None, None), ("<b>emulated</b> here", "&lt;b&gt;emulated&lt;/b&gt; here")):
        url = await lab.edge(**({} if notice is None else {"edge_notice": notice}))
        for path in PAGES:
            async with lab.http.get(url + path) as response:
                page = await response.text()
            found = re.search(r'<p id="notice">(.*?)</p>', page)
            assert (found and found[1]) == shown
            assert "<!-- notice" not in page


async def test_probes_and_models(lab):
    url = await lab.edge()
    for path, text in (("/healthz", "ok\n"), ("/health", "ok\n"), ("/readyz", "ready\n")):
        async with lab.http.get(url + path, headers={"Host": "10.0.0.7:8080"}) as response:
            assert (response.status, await response.text()) == (200, text)
    async with lab.http.get(f"{url}/metrics") as response:
        assert "railbus_edge_streams" in await response.text()
    async with lab.http.get(f"{url}/v1/models") as response:
        (default,) = (await response.json())["data"]
    async with lab.http.get(f"{url}/v1/models/default") as response:
        assert await response.json() == default
        assert (default["id"], default["object"]) == ("default", "model")


@pytest.mark.parametrize("name", ["nope", "org/model", "%ff", "%00", "x" * 4_000])
async def test_an_unknown_model_has_an_openai_error(lab, name):
    url = await lab.edge()
    async with lab.http.get(URL(f"{url}/v1/models/{name}", encoded=True)) as response:
        assert response.status == 404
        error = (await response.json())["error"]
    assert (error["code"], error["param"], error["type"]) == ("model_not_found", "model", "invalid_request_error")


async def test_a_model_with_a_slash_in_its_name_is_found(lab):
    url = await lab.edge()
    async with lab.open_stream(url) as client:
        writer = await lab.next_writer()
        await lab.write(writer.started("org/tiny"), writer.chunk("x"), writer.finished(), writer.closed())
        await client.rest()
    for path in ("org/tiny", "org%2Ftiny"):
        async with lab.http.get(URL(f"{url}/v1/models/{path}", encoded=True)) as response:
            assert (await response.json())["id"] == "org/tiny"
