"""The site of docs/ builds, strictly and without the net: no link is broken, and every public name is in the
reference."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.services.public_face import documented_names, public_objects

pytestmark = pytest.mark.timeout(400)
ROOT = Path(__file__).resolve().parents[3]
FETCHED = re.compile(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=\"?(?:https?:)?//[^\s\">]+|@import[^;]*//[^;]+")
"""What a browser would load from elsewhere, as opposed to a link that a person may follow."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The directory of the built site; a warning of the builder is an error."""
    where = tmp_path_factory.mktemp("site")
    nowhere = {"http_proxy": "http://127.0.0.1:1", "https_proxy": "http://127.0.0.1:1", "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(where)],
        cwd=ROOT,
        env={**os.environ, **nowhere},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (0, "") == (done.returncode, done.stderr)
    return where


@pytest.mark.slow
def test_every_public_name_is_in_the_reference(site):
    """Classes and functions under their own names, and the methods of classes below them."""
    page = (site / "reference.html").read_text()
    anchors = set(re.findall(r'id="snapline\.([\w.]+)"', page))
    places = {name.removeprefix("snapline.") for name, _ in public_objects()}
    assert set() == places - anchors
    members = {name for name, _, _ in documented_names() if "." in name}
    of_public = {anchor for place in places for anchor in anchors if anchor.startswith(f"{place}.")}
    shown = {".".join(anchor.split(".")[-2:]) for anchor in of_public}
    inherited = {name for name in members - shown if not has_own_docstring(name)}
    assert set() == members - shown - inherited


def has_own_docstring(name: str) -> bool:
    """A method that only has the docstring of its contract is shown there."""
    owner, _, member = name.partition(".")
    value = next(value for full_name, value in public_objects() if full_name.endswith(f".{owner}"))
    raw = vars(value)[member]
    return bool((getattr(raw, "fget", None) or getattr(raw, "__func__", raw)).__doc__)


@pytest.mark.slow
def test_nothing_of_a_page_comes_from_the_net(site):
    """No script, font, style or picture: the site can be read on a machine without a network."""
    fetched = {found for page in site.rglob("*.html") for found in FETCHED.findall(page.read_text())}
    assert set() == fetched
