"""``python -m infra.docs.check FOLDER``: fail if a page loads a file from another host or has a broken link."""

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

LOADED: Final = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
"""Elements that make a browser load a file, with the attribute that names it."""

NOT_LOADED: Final = frozenset({"canonical", "next", "prev", "alternate"})
"""Values of ``rel`` with which a ``link`` element only names another page, so that a browser does not load it."""

REMOTE: Final = re.compile(r"^(https?:)?//")
CSS_URL: Final = re.compile(r"""(?:url\(|@import)\s*['"]?((?:https?:)?//[^'")\s]+)""")


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        self.ids |= {named["id"]} if "id" in named else set()
        if tag == "a" and "href" in named:
            self.links.append(named["href"])
        loaded = named.get(LOADED.get(tag, ""), "")
        if loaded and not (tag == "link" and set(named.get("rel", "").split()) & NOT_LOADED):
            self.loads.append(loaded)


def faults(site: Path) -> Iterator[str]:
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    if not pages:
        yield f"{site}: there is no page"
    for path, page in pages.items():
        name = path.relative_to(site)
        yield from (f"{name} loads {address} from another host" for address in page.loads if REMOTE.match(address))
        if name.name != "404.html":  # its links begin at the root of a server
            local = [
                link for link in (*page.links, *page.loads) if not urlsplit(link).scheme and not REMOTE.match(link)
            ]
            yield from (
                f"{name} links to {link}, which is not there" for link in local if not _there(path, link, pages)
            )
    for path in sorted(site.rglob("*.css")):
        found = CSS_URL.findall(path.read_text(encoding="utf-8"))
        yield from (f"{path.relative_to(site)} loads {address} from another host" for address in found)


def _there(page: Path, link: str, pages: dict[Path, Page]) -> bool:
    address = urlsplit(link)
    target = (page.parent / unquote(address.path)).resolve() if address.path else page
    if target.is_dir():
        target /= "index.html"
    if address.fragment and target in pages:
        return unquote(address.fragment) in pages[target].ids
    return target.is_file()


def main() -> int:
    found = list(faults(Path(sys.argv[1]).resolve()))
    sys.stderr.writelines(f"{fault}\n" for fault in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
