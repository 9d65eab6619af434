"""The graph of the rules of a run, as SVG: what was made of what, from inputs to drawings."""

from __future__ import annotations

import html
from collections.abc import Collection

#: Pixels: a letter, a box's height and the room between columns.
_LETTER, _HEIGHT, _ROOM = 8, 22, 60
_LINE = '<line x1="{}" y1="{}" x2="{}" y2="{}" stroke="#999"/>'
_BOX = (
    '<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="4" fill="#eef3f8" stroke="#005a9c"/>'
    '<text x="{middle}" y="{base}" text-anchor="middle">{name}</text>'
)


def svg(edges: Collection[tuple[str, str]]) -> str:
    """Return the graph with a box for each rule, right of all those whose files it takes.

    Parameters
    ----------
    edges : collection of (str, str)
        A rule, and one that takes its files; without circles.
    """
    column = dict.fromkeys((name for edge in edges for name in edge), 0)
    for _ in column:  # no path is longer than there are rules
        for before, after in edges:
            column[after] = max(column[after], column[before] + 1)
    columns = [sorted(name for name in column if column[name] == place) for place in sorted(set(column.values()))]
    boxes: dict[str, tuple[int, int, int]] = {}
    left, height = 10, 0
    for names in columns:
        width = _LETTER * max(map(len, names)) + 16
        boxes |= {name: (left, 10 + 2 * _HEIGHT * row, width) for row, name in enumerate(names)}
        left, height = left + width + _ROOM, max(height, 2 * _HEIGHT * len(names))
    parts = []
    for before, after in edges:
        (x, y, width), (to_x, to_y, _) = boxes[before], boxes[after]
        parts.append(_LINE.format(x + width, y + _HEIGHT // 2, to_x, to_y + _HEIGHT // 2))
    for name, (x, y, width) in boxes.items():
        middle, base = x + width // 2, y + _HEIGHT - 7
        shown = html.escape(name)
        parts.append(_BOX.format(x=x, y=y, width=width, height=_HEIGHT, middle=middle, base=base, name=shown))
    size = f'width="{max(left - _ROOM, 0) + 10}" height="{height + 10}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="13">'
    return "\n".join([head, *parts, "</svg>\n"])
