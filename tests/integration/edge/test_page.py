"""The page brings everything along, runs no script but its own file, and is told apart from the API."""

import re

import pytest

PARTS = ("/", "/app.js", "/style.css")


@pytest.fixture
async def parts(stage):
    url = await stage.edge()
    found = {}
    for path in PARTS:
        async with stage.http.get(url + path) as response:
            assert response.status == 200
            found[path] = (response.headers, await response.text())
    return found


async def test_it_is_locked_down(parts):
    for headers, _ in parts.values():
        policy = dict(rule.strip().split(" ", 1) for rule in headers["Content-Security-Policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == "'none'"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "Access-Control-Allow-Origin" not in headers


async def test_nothing_comes_from_elsewhere(parts):
    for _, text in parts.values():
        addresses = set(re.findall(r"https?://[^\"'\s)]+", text))
        assert addresses <= {"http://www.w3.org/2000/svg"}


async def test_the_policy_leaves_it_working(parts):
    """No inline script, style or handler: the policy would not run them."""
    _, page = parts["/"]
    assert not re.search(r"<script(?![^>]*\ssrc=)[^>]*>", page)
    assert not re.search(r"<style|\sstyle=|\son\w+=", page)
    assert set(re.findall(r"(?:src|href)=\"(/[^\"]*)\"", page)) == set(PARTS) - {"/"}


async def test_script_and_page_agree(parts):
    _, page = parts["/"]
    _, script = parts["/app.js"]
    named = set(re.findall(r"\$\(\"([a-z-]+)\"\)", script)) | set(re.findall(r"say\(\"([a-z-]+)\"", script))
    assert named
    assert named <= set(re.findall(r"\sid=\"([a-z-]+)\"", page))
    labels = re.findall(r"<(?:input|select|textarea)[^>]*\sid=\"([a-z-]+)\"", page)
    for control in labels:  # each has a label around it or for it
        around = rf"<label[^>]*>(?:(?!</label>).)*id=\"{control}\""
        assert re.search(rf"<label[^>]*for=\"{control}\"|{around}", page, re.DOTALL)


async def test_it_says_what_the_operator_wants_said(stage):
    for notice, shown in ((None, None), ("<b>emulated</b> here", "&lt;b&gt;emulated&lt;/b&gt; here")):
        url = await stage.edge(**({} if notice is None else {"edge_notice": notice}))
        async with stage.http.get(url) as response:
            page = await response.text()
        found = re.search(r'<p id="notice">(.*?)</p>', page)
        assert (found and found[1]) == shown
        assert "<!-- notice" not in page


async def test_probes_and_models(stage):
    url = await stage.edge()
    for path, text in (("/healthz", "ok\n"), ("/readyz", "ready\n")):
        async with stage.http.get(url + path, headers={"Host": "10.0.0.7:8080"}) as response:
            assert (response.status, await response.text()) == (200, text)
    async with stage.http.get(f"{url}/metrics") as response:
        assert "railbus_edge_streams" in await response.text()
    async with stage.http.get(f"{url}/v1/models") as response:
        assert (await response.json())["data"][0]["id"] == "default"
