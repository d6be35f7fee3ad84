"""The web pages at ``/`` and ``/ledger``, with their scripts and style sheets."""

import html
from importlib import resources
from typing import Final

from aiohttp import web

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""With this policy, a page loads nothing from other origins and runs only script files of this edge."""

_FILES: Final = {
    "/": ("index.html", "text/html"),
    "/app.js": ("app.js", "text/javascript"),
    "/style.css": ("style.css", "text/css"),
    "/ledger": ("ledger.html", "text/html"),
    "/ledger.js": ("ledger.js", "text/javascript"),
    "/charts.js": ("charts.js", "text/javascript"),
    "/ledger.css": ("ledger.css", "text/css"),
}

NOTICE_PLACEHOLDER: Final = b"<!-- notice -->"
"""Comment in the pages' HTML that is replaced by the setting ``edge_notice``."""

PERSON_VIEW: Final = b'<body data-view="person">'
OPERATOR_VIEW: Final = b'<body data-view="operator">'
"""With this ``body`` tag, the page at ``/`` keeps text that was taken back, struck through."""


class PageEndpoint:
    def __init__(self, notice: str, *, operator_view: bool = False) -> None:
        folder = resources.files("services.edge") / "static"
        self._files = {path: ((folder / name).read_bytes(), kind) for path, (name, kind) in _FILES.items()}
        for path in ("/", "/ledger"):
            page, kind = self._files[path]
            self._files[path] = page.replace(NOTICE_PLACEHOLDER, _paragraph(notice).encode()), kind
        if operator_view:
            page, kind = self._files["/"]
            self._files["/"] = page.replace(PERSON_VIEW, OPERATOR_VIEW), kind

    def routes(self) -> list[web.RouteDef]:
        return [web.get(path, self.file) for path in self._files]

    async def file(self, request: web.Request) -> web.Response:
        """Serve a page, a script or a style sheet."""
        body, kind = self._files[request.path]
        headers = {"Content-Security-Policy": CONTENT_SECURITY_POLICY, "Cache-Control": "no-cache"}
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=headers)


def _paragraph(notice: str) -> str:
    return f'<p id="notice">{html.escape(notice)}</p>' if notice else ""
