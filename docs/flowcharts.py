"""Flow charts of the pages, drawn as SVG without a browser's help: the part of Mermaid's language that they use."""

from __future__ import annotations

import html
import itertools
import re
import statistics

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


def _laid_out(
    labels: dict[str, str], edges: list[tuple[str, str, str]]
) -> tuple[dict[str, tuple[float, float]], list[list[str]]]:
    """Return the middle of each place, and for each edge the places that it passes, tail and head included.

    A place is a node, or where an edge crosses a row: between the boxes, and named by its number and the row.
    """
    rank = dict.fromkeys(labels, 0)
    for _ in labels:
        for tail, head, _label in edges:
            rank[head] = max(rank[head], rank[tail] + 1)
    ways = [
        [tail, *(f"{number} {row}" for row in range(rank[tail] + 1, rank[head])), head]
        for number, (tail, head, _label) in enumerate(edges)
    ]
    rows: list[list[str]] = [[name for name in labels if rank[name] == row] for row in range(max(rank.values()) + 1)]
    before: dict[str, list[str]] = {}
    for way in ways:
        for number, (last, place) in enumerate(itertools.pairwise(way), start=rank[way[0]] + 1):
            before.setdefault(place, []).append(last)
            if place not in labels:
                rows[number].append(place)
    wide = [sum(_width(labels.get(place)) + _GAP for place in row) - _GAP for row in rows]
    middle: dict[str, tuple[float, float]] = {}
    for number, row in enumerate(rows):
        x = (max(wide) - wide[number]) / 2 + 1
        # In the order of what leads to them, so that fewer edges cross.
        row.sort(
            key=lambda place: statistics.fmean(middle[last][0] for last in before.get(place, [])) if number else 0.0
        )
        for place in row:
            half = _width(labels.get(place)) / 2
            middle[place] = x + half, number * (_HEIGHT + _DROP) + _HEIGHT / 2 + 1
            x += 2 * half + _GAP
    return middle, ways


def _width(label: str | None) -> float:
    """Return how wide the box of a label is; where there is none, an edge passes."""
    return 0.0 if label is None else _LETTER * len(label) + 28


def svg(text: str) -> str:
    """Return a chart from top to bottom: a node stands below all that lead to it, and edges pass beside boxes."""
    labels, edges = read(text)
    middle, ways = _laid_out(labels, edges)
    lines, words = [], []
    for (_tail, head, label), way in zip(edges, ways, strict=True):
        path = []
        for start, end in itertools.pairwise(way):
            (x1, y1), (x2, y2) = middle[start], middle[end]
            y1, y2 = y1 + _HEIGHT / 2, y2 - _HEIGHT / 2 - 4 * (end == head)
            path.append(f"{x1:.0f},{y1:.0f} C{x1:.0f},{y1 + 26:.0f} {x2:.0f},{y2 - 26:.0f} {x2:.0f},{y2:.0f}")
            if label and start == way[0]:  # nearer to the end, where edges of one node have parted
                x, y, wide = x1 + 0.75 * (x2 - x1), y1 + 0.6 * (y2 - y1), 0.9 * _LETTER * len(label)
                words.append(
                    f'<rect x="{x - wide / 2:.0f}" y="{y - 12:.0f}" width="{wide:.0f}" height="16" class="edge"/>'
                )
                words.append(f'<text x="{x:.0f}" y="{y:.0f}" class="edge">{html.escape(label)}</text>')
        lines.append(f'<path d="M{" L".join(path)}"/>')
    for name, label in labels.items():
        (x, y), wide = middle[name], _width(label)
        box = f'x="{x - wide / 2:.0f}" y="{y - _HEIGHT / 2:.0f}" width="{wide:.0f}" height="{_HEIGHT}"'
        words.append(f'<rect {box} rx="6"/><text x="{x:.0f}" y="{y + 4:.0f}">{html.escape(label)}</text>')
    whole = max(x + _width(labels.get(place)) / 2 for place, (x, _) in middle.items()) + 1
    high = max(y for _, y in middle.values()) + _HEIGHT / 2 + 1
    size = f'width="{whole:.0f}" height="{high:.0f}" viewBox="0 0 {whole:.0f} {high:.0f}"'
    size += f' style="min-width: min({whole:.0f}px, 30rem)"'
    said = "; ".join(f"{labels[tail]}{label and f' ({label})'} → {labels[head]}" for tail, head, label in edges)
    drawing = f"<defs>{_ARROW_HEAD}</defs>{''.join(lines)}{''.join(words)}"
    named = f'role="img" aria-label="{html.escape(said)}"'
    return f'<div class="flowchart"><svg xmlns="http://www.w3.org/2000/svg" {named} {size}>{drawing}</svg></div>'


def drawn(page: str) -> str:
    """Return a page with its flow charts as pictures."""
    return _BLOCK.sub(lambda found: f"```{{raw}} html\n{svg(found[1])}\n```", page)
