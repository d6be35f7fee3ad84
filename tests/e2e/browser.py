"""A minimal driver of a headless Chromium. It speaks the browser's DevTools protocol over one websocket."""

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
"""The protocol's error code if the page is left or reloaded while a script runs in it."""


READ = 'location.href !== "about:blank" && document.readyState !== "loading"'
"""JavaScript: whether the browser has read the whole document. A test that looks earlier may see only its beginning."""

LOST_S = 5
"""If a script in ``until`` has no result after this many seconds, it is sent again."""


class NavigatedError(Exception):
    """The page was left or reloaded before a script in it returned its result."""


class Page:
    """A tab of the browser."""

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
        """Evaluate a JavaScript expression in the page, and return its value."""
        result = await self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    async def until(self, script, within_s=30):
        """Wait until a JavaScript expression is true, and return its value. The page may be reloaded meanwhile."""
        async with asyncio.timeout(within_s):
            while True:
                with suppress(NavigatedError, TimeoutError):  # a script may get no result while the page changes
                    async with asyncio.timeout(LOST_S):
                        if value := await self.run(script):
                            return value
                await asyncio.sleep(0.02)

    async def reload(self):
        """Reload the page, and return when the old document is gone."""
        await self.run("window.isOld = true")
        await self.call("Page.reload")
        await self.until("!window.isOld")

    async def picture(self, *, whole=False):
        """Return a PNG screenshot of the visible part, or of the whole page if ``whole`` is true."""
        shot = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(shot["data"])


@asynccontextmanager
async def browsing(url, size=(1_000, 1_080)):
    """Show this URL in a new browser, and yield its tab. At the end, kill the browser and delete its profile.

    ``size`` is the width and height of the window in pixels.
    """
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
    """Return the DevTools description of the browser's tab, or None if the browser has no tab yet."""
    async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
        return next((tab for tab in await answer.json(content_type=None) if tab["type"] == "page"), None)


async def _port(path, process):
    async with asyncio.timeout(60):
        while not path.exists() or not path.read_text().strip():
            assert process.returncode is None, "the browser ended at once"
            await asyncio.sleep(0.05)
    return int(path.read_text().splitlines()[0])
