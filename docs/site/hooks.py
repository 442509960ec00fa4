"""What the site needs beyond its pages: a list of all decisions, and links into the repository as plain paths.

Pages are read in the repository, too, where `[systemd](../deploy/systemd)` leads somewhere. The site has pages of docs/ only, so a
link that leaves docs/ becomes its text and the path in the repository.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+((?!decisions/)[\w./-]+)\)")
DOCS = Path(__file__).resolve().parents[1]


def on_config(config: Any) -> Any:
    """The pages that mkdocs.yml does not name come behind those that it does, and then all decisions, by their numbers."""
    known = set(_paths(config.nav))
    more = sorted(path.name for path in DOCS.glob("*.md") if path.name not in known)
    decisions = sorted(f"decisions/{path.name}" for path in (DOCS / "decisions").glob("*.md"))
    config.nav = [*config.nav, *more, {"Decisions": decisions}]
    return config


def _paths(nav: Any) -> Any:
    for entry in nav:
        if isinstance(entry, dict):
            for value in entry.values():
                yield from [value] if isinstance(value, str) else _paths(value)
        else:
            yield entry


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links that leave docs/ become text. From a decision, `../guide.md` does not leave it."""
    deep = page.file.src_uri.count("/")

    def plain(found: re.Match[str]) -> str:
        ups = found.group(0).count("../")
        if ups <= deep and (DOCS / found.group(2)).exists():
            return found.group(0)
        if not (DOCS.parent / found.group(2)).exists():
            raise ValueError(f"{page.file.src_uri}: there is no {found.group(2)} in the repository")
        text = found.group(1)
        return text if text.strip("`") == found.group(2) else f"{text} (`{found.group(2)}`)"

    return OUTSIDE.sub(plain, markdown)
