"""Every link inside a built site leads somewhere: ``python tests/book/links.py book/_build/html``.

Pages, files and anchors of ``href`` and ``src``. Links to other sites are listed by ``--outside``, never followed; a script, style, picture or
frame from elsewhere is an error.
"""
from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "video": "src", "audio": "src"}


class Page(HTMLParser):
    """The anchors and links of a page."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.ids: set[str] = set()
        self.links: list[tuple[str, bool]] = []
        """(address, whether the browser loads it by itself)."""
        self.unnamed: list[str] = []
        """Pictures without a text."""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        own = {name: value or "" for name, value in attrs}
        self.ids.update(own[key] for key in ("id", "name") if own.get(key))
        if tag == "img" and "alt" not in own:
            self.unnamed.append(own.get("src", ""))
        for key in ("href", "src"):
            if own.get(key):
                canonical = tag == "link" and own.get("rel") in ("canonical", "prev", "next", "search", "author", "index")
                self.links.append((own[key], LOADED.get(tag) == key and not canonical))


def faults(site: Path) -> tuple[list[str], set[str], int]:
    """What is wrong, the addresses of other sites, and how many links were looked at. (In ``_static`` lie a theme's templates, no pages.)"""
    pages = {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))
             if path.relative_to(site).parts[0] != "_static"}
    wrong: list[str] = []
    outside: set[str] = set()
    count = 0
    for path, page in pages.items():
        here = path.relative_to(site.resolve())
        wrong += [f"{here}: a picture without alt text: {source}" for source in page.unnamed]
        for link, loaded in page.links:
            count += 1
            parts = urlsplit(link)
            if parts.scheme in ("data", "mailto", "javascript"):
                continue
            if parts.scheme or parts.netloc:
                outside.add(link)
                if loaded:
                    wrong.append(f"{here}: loads {link} from elsewhere")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.is_file():
                wrong.append(f"{here}: {link}: there is no such file")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
                wrong.append(f"{here}: {link}: there is no such place on that page")
    return wrong, outside, count


def main(arguments: list[str]) -> int:
    site = Path(arguments[0])
    if not (site / "index.html").is_file():
        print(f"there is no site in {site}: build it first, jupyter-book build -W book", file=sys.stderr)
        return 2
    wrong, outside, count = faults(site)
    if "--outside" in arguments:
        print("\n".join(sorted(outside)))
    print("\n".join(wrong[:100]))
    print(f"{count:,} links, {len(wrong)} broken; {len(outside)} to other sites, not followed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
