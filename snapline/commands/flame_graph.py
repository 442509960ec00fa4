"""Stacks and how often they were seen, as a flame graph: one HTML file without a script from elsewhere.

Width is time, the outermost frame is on top. A click on a frame makes it as wide as the page, a click on the top goes
back. Frames of less than a thousandth of the time are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from html import escape
from typing import Any

LEAST_SHARE = 0.001


def flame_graph(title: str, stacks: Mapping[tuple[str, ...], int]) -> str:
    """The page. `stacks` are outermost frame first."""
    root: dict[str, Any] = {"name": "all", "count": sum(stacks.values()), "below": {}}
    for frames, count in stacks.items():
        node = root
        for frame in frames:
            node = node["below"].setdefault(frame, {"name": frame, "count": 0, "below": {}})
            node["count"] += count
    data = json.dumps(_pruned(root, root["count"] * LEAST_SHARE)).replace("<", "\\u003c")
    texts = {"__TITLE__": escape(title), "__DATA__": data}
    return re.sub("__TITLE__|__DATA__", lambda mark: texts[mark[0]], _PAGE)  # once, for a text may contain a mark


def _pruned(node: dict[str, Any], least: float) -> dict[str, Any]:
    below = sorted((child for child in node["below"].values() if child["count"] >= least), key=lambda n: -n["count"])
    return {"n": node["name"], "c": node["count"], "b": [_pruned(child, least) for child in below]}


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>__TITLE__</title>
<style>
:root{color-scheme:light dark}
body{font:13px system-ui,sans-serif;margin:1rem}
#g button{position:absolute;height:19px;border:0;border-right:1px solid Canvas;overflow:hidden;white-space:nowrap;
text-overflow:ellipsis;font:11px ui-monospace,monospace;text-align:left;padding:0 3px;color:#222;cursor:pointer}
#g{position:relative}
#d{min-height:1.4em;font-family:ui-monospace,monospace;overflow-wrap:anywhere}
</style></head><body>
<h1 style="font-size:1.1rem">__TITLE__</h1>
<p id="d" aria-live="polite"></p><div id="g"></div>
<script>
const root = __DATA__;
const graph = document.getElementById("g"), detail = document.getElementById("d");
function hue(text) { let h = 0; for (const c of text) h = (h * 31 + c.charCodeAt(0)) % 997; return 10 + h % 50; }
function draw(top) {
  graph.textContent = "";
  let deepest = 0;
  function place(node, left, width, depth) {
    deepest = Math.max(deepest, depth);
    const b = document.createElement("button");
    b.style.left = left + "%"; b.style.width = width + "%"; b.style.top = depth * 20 + "px";
    b.style.background = `hsl(${hue(node.n)} 75% 68%)`;
    const text = `${node.n}: ${node.c} (${(100 * node.c / Math.max(1, root.c)).toFixed(1)} %)`;
    b.textContent = node.n; b.title = text; b.setAttribute("aria-label", text);
    b.onclick = () => draw(node === top ? root : node);
    b.onmouseenter = b.onfocus = () => { detail.textContent = text; };
    graph.append(b);
    let at = left;
    for (const child of node.b) {
      const share = width * child.c / Math.max(1, node.c);
      if (share > 0.08) place(child, at, share, depth + 1);
      at += share;
    }
  }
  place(top, 0, 100, 0);
  graph.style.height = (deepest + 2) * 20 + "px";
}
draw(root);
</script></body></html>
"""
