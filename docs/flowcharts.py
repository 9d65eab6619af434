"""Flow charts of the pages, drawn as SVG without a browser's help: the part of Mermaid's language that they use."""

from __future__ import annotations

import html
import re

_BLOCK = re.compile(r"^```mermaid\nflowchart \w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NODE = re.compile(r"(\w+)(?:\[([^\]]*)\]|\{([^}]*)\})?")
_ARROW = re.compile(r"\s*-->(?:\|([^|]*)\|)?\s*")
_LETTER, _HEIGHT, _GAP, _DROP = 7.0, 34, 24, 52


def read(text: str) -> tuple[dict[str, str], list[tuple[str, str, str]]]:
    """Return the labels of the nodes, and the edges with theirs.

    Raises
    ------
    ValueError
        For a line that is not of this part of the language.
    """
    labels: dict[str, str] = {}
    edges = []
    for line in filter(None, map(str.strip, text.splitlines())):
        parts = _ARROW.split(line)
        groups = []
        for part in parts[::2]:
            group = []
            for each in part.split(" & "):
                node = _NODE.fullmatch(each.strip())
                if node is None:
                    raise ValueError(f"a flow chart has {each!r}, which is no node")
                name, box, question = node.groups()
                labels[name] = box or question or labels.get(name, name)
                group.append(name)
            groups.append(group)
        for tails, label, heads in zip(groups, parts[1::2], groups[1:], strict=False):
            edges += [(tail, head, label or "") for tail in tails for head in heads]
    return labels, edges


_ARROW_HEAD = (
    '<marker id="arrow" viewBox="0 0 8 8" refX="4" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0,0 L8,4 L0,8 z" class="head"/></marker>'
)


def svg(text: str) -> str:
    """Return a chart from top to bottom: a node stands below all that lead to it."""
    labels, edges = read(text)
    rank = dict.fromkeys(labels, 0)
    for _ in labels:
        for tail, head, _label in edges:
            rank[head] = max(rank[head], rank[tail] + 1)
    width = {name: _LETTER * len(label) + 20 for name, label in labels.items()}
    rows = [[name for name in labels if rank[name] == row] for row in range(max(rank.values()) + 1)]
    whole = max(sum(width[name] + _GAP for name in row) for row in rows)
    high = len(rows) * (_HEIGHT + _DROP) - _DROP + 2
    middle = {}
    for number, row in enumerate(rows):
        x = (whole - sum(width[name] + _GAP for name in row) + _GAP) / 2
        for name in row:
            middle[name] = x + width[name] / 2, number * (_HEIGHT + _DROP) + _HEIGHT / 2 + 1
            x += width[name] + _GAP
    lines, words = [], []
    for tail, head, label in edges:
        (x1, y1), (x2, y2) = middle[tail], middle[head]
        y1, y2 = y1 + _HEIGHT / 2, y2 - _HEIGHT / 2 - 4
        lines.append(f'<path d="M{x1:.0f},{y1:.0f} C{x1:.0f},{y1 + 26:.0f} {x2:.0f},{y2 - 26:.0f} {x2:.0f},{y2:.0f}"/>')
        if label:  # nearer to the head, where edges of one node have parted
            x, y = x1 + 0.75 * (x2 - x1), y1 + 0.6 * (y2 - y1)
            words.append(f'<text x="{x:.0f}" y="{y:.0f}" class="edge">{html.escape(label)}</text>')
    for name, (x, y) in middle.items():
        box = f'x="{x - width[name] / 2:.0f}" y="{y - _HEIGHT / 2:.0f}" width="{width[name]:.0f}" height="{_HEIGHT}"'
        words.append(f'<rect {box} rx="6"/><text x="{x:.0f}" y="{y + 4:.0f}">{html.escape(labels[name])}</text>')
    size = f'style="max-width: {whole:.0f}px" viewBox="0 0 {whole:.0f} {high:.0f}"'
    shapes = f"<defs>{_ARROW_HEAD}</defs>{''.join(lines)}{''.join(words)}"
    return f'<div class="flowchart"><svg xmlns="http://www.w3.org/2000/svg" role="img" {size}>{shapes}</svg></div>'


def drawn(page: str) -> str:
    """Return a page with its flow charts as pictures."""
    return _BLOCK.sub(lambda found: f"```{{raw}} html\n{svg(found[1])}\n```", page)
