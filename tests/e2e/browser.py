"""A real browser, driven by its own protocol over one websocket. No more than these tests need."""

import asyncio
import base64
import itertools
import json
import shutil
import tempfile
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp

from tests.support.waiting import until

PROGRAM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    "--remote-debugging-port=0",
)  # fmt: skip


NAVIGATING = -32_000
"""The protocol's code for a script whose page went away under it."""


READ = 'location.href !== "about:blank" && document.readyState !== "loading"'
"""Whether the whole document was read: a test that asks earlier sees the beginning of a page."""

LOST_S = 5
"""After that a script is asked again."""


class NavigatedError(Exception):
    """The page was left, or loaded again, before it could answer."""


class Page:
    """One tab."""

    def __init__(self, socket):
        self._socket = socket
        self._ids = itertools.count(1)

    async def call(self, method, **params):
        number = next(self._ids)
        await self._socket.send_json({"id": number, "method": method, "params": params})
        async with asyncio.timeout(30):
            async for message in self._socket:
                answer = json.loads(message.data)
                if answer.get("id") == number:
                    if answer.get("error", {}).get("code") == NAVIGATING:
                        raise NavigatedError(answer["error"]["message"])
                    assert "error" not in answer, answer
                    return answer["result"]
        raise AssertionError("the browser closed the connection")

    async def run(self, script):
        """The value of an expression in the page."""
        result = await self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    async def until(self, script, within_s=30):
        """Waits until an expression is true in the page, also while it is being loaded again."""
        async with asyncio.timeout(within_s):
            while True:
                with suppress(NavigatedError, TimeoutError):  # what is asked in between may get no answer at all
                    async with asyncio.timeout(LOST_S):
                        if value := await self.run(script):
                            return value
                await asyncio.sleep(0.02)

    async def reload(self):
        """Loads the page again; returns when the old one is gone."""
        await self.run("window.isOld = true")
        await self.call("Page.reload")
        await self.until("!window.isOld")

    async def picture(self, *, whole=False):
        """What it looks like, as PNG: what is in view, or the whole page."""
        shot = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(shot["data"])


@asynccontextmanager
async def browsing(url, size=(1_000, 1_080)):
    """A tab that shows this address; the browser and its folder are gone afterwards."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        process = await asyncio.create_subprocess_exec(
            PROGRAM, *QUIET, f"--user-data-dir={folder}", f"--window-size={size[0]},{size[1]}", "about:blank",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            port = await _port(Path(folder) / "DevToolsActivePort", process)
            async with aiohttp.ClientSession() as session:
                target = await until(lambda: _tab(session, port), "the browser has a tab")
                async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=2**26) as socket:
                    page = Page(socket)
                    await page.call("Page.navigate", url=url)
                    await page.until(READ)
                    yield page
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _tab(session, port):
    """The browser's tab; None while it serves and has none yet."""
    async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
        return next((tab for tab in await answer.json(content_type=None) if tab["type"] == "page"), None)


async def _port(path, process):
    async with asyncio.timeout(60):
        while not path.exists() or not path.read_text().strip():
            assert process.returncode is None, "the browser ended at once"
            await asyncio.sleep(0.05)
    return int(path.read_text().splitlines()[0])
