"""Draws the Mermaid graph of `docs/design.md` as SVG, so that the site works without a script.

It supports the part of Mermaid that the page uses: boxes, one level of subgraphs, and arrows.
"""

import html
import itertools
import re
import textwrap
from typing import NamedTuple

_BOX = re.compile(r'^\s*(subgraph )?(\w+) ?\["(.*)"\]$')
_ARROW = re.compile(r"^\s*\w+(?: --> \w+)+$")
_WIDTH, _LINE, _GAP, _PADDING = 250, 15, 18, 12
_LETTERS = 38  # Letters on a line of a box.


class Graph(NamedTuple):
    """A graph.

    Attributes:
      labels: Box → label.
      groups: Group or lone box → its boxes, in order.
      arrows: Pairs of boxes or groups.
    """

    labels: dict[str, str]
    groups: dict[str, list[str]]
    arrows: list[tuple[str, str]]


def read(source: str) -> Graph:
    """Reads a graph.

    Raises:
      ValueError: If a line is not supported.
    """
    graph, group = Graph({}, {}, []), None
    for line in source.strip().splitlines()[1:]:
        box = _BOX.match(line)
        if box:
            graph.labels[box[2]] = box[3]
            if box[1]:
                group = box[2]
                graph.groups[group] = []
            else:
                graph.groups.setdefault(group or box[2], []).append(box[2])
        elif line.strip() == "end":
            group = None
        elif _ARROW.match(line):
            graph.arrows.extend(itertools.pairwise(re.findall(r"\w+", line)))
        else:
            raise ValueError(f"The diagram has a line that is not known: {line.strip()}")
    return graph


def svg(source: str) -> str:
    """Returns the graph as one line of SVG: groups from top to bottom, boxes within them."""
    graph = read(source)
    rows: dict[int, list[str]] = {}
    for group in graph.groups:
        rows.setdefault(_depth(graph, group), []).append(group)
    columns = max(map(len, rows.values()))
    width = columns * (_WIDTH + 2 * _PADDING) + (columns + 1) * _GAP
    parts, places, y = [], {}, _GAP
    for depth in sorted(rows):
        groups = rows[depth]
        wide = _WIDTH + 2 * _PADDING
        x = (width - len(groups) * wide - (len(groups) - 1) * _GAP) / 2
        lowest = y
        for group in groups:
            bottom = _group(graph, group, x, y, parts, places)
            lowest = max(lowest, bottom)
            x += wide + _GAP
        y = lowest + 2 * _GAP
    lines = [_arrow(places, *arrow) for arrow in graph.arrows]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" width="{width}" '
        f'height="{y}" role="img" aria-label="Packages and what each imports" '
        'font-family="sans-serif" font-size="12">'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="#444"/></marker></defs>'
        + "".join(parts)
        + "".join(lines)
        + "</svg>"
    )


def _depth(graph: Graph, group: str) -> int:
    before = [a for a, b in graph.arrows if b == group and a in graph.groups]
    return 1 + max((_depth(graph, a) for a in before), default=-1)


def _order(graph: Graph, boxes: list[str]) -> list[str]:
    """Returns boxes in an order in which arrows point down."""

    def depth(box):
        return 1 + max((depth(a) for a, b in graph.arrows if b == box and a in boxes), default=-1)

    return sorted(boxes, key=depth)


def _group(graph, group, x, y, parts, places) -> float:
    boxes = _order(graph, graph.groups[group])
    top, frame = y, len(parts)
    wide = _WIDTH + 2 * _PADDING
    if boxes != [group]:
        y += _LINE + _PADDING / 2
    for box in boxes:
        lines = textwrap.wrap(graph.labels[box], _LETTERS)
        high = len(lines) * _LINE + _PADDING
        places[box] = (x + _PADDING, y + _PADDING / 2, _WIDTH, high)
        parts.append(_rectangle(*places[box], "#fff") + _words(places[box], lines))
        y += high + _GAP
    y += _PADDING - _GAP
    if boxes != [group]:
        places[group] = (x, top, wide, y - top)
        title = f'<text x="{x + _PADDING}" y="{top + _LINE}" font-weight="bold">'
        title += f"{html.escape(graph.labels[group])}</text>"
        parts.insert(frame, _rectangle(*places[group], "#eef3f8") + title)
    return y


def _rectangle(x, y, width, height, fill) -> str:
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="5" fill="{fill}" '
        'stroke="#888"/>'
    )


def _words(place, lines) -> str:
    x, y, width, _ = place
    return "".join(
        f'<text x="{x + width / 2}" y="{y + (i + 1) * _LINE}" text-anchor="middle">'
        f"{html.escape(line)}</text>"
        for i, line in enumerate(lines)
    )


def _arrow(places, start, end) -> str:
    """Returns a downward arrow; to pass other boxes of a column, it runs on their right side."""
    x1, y1, width1, high1 = places[start]
    x2, y2, width2, high2 = places[end]
    style = 'fill="none" stroke="#444" marker-end="url(#tip)"'
    if x1 == x2 and y2 - (y1 + high1) > 2 * _GAP:
        right, middle1, middle2 = x1 + width1, y1 + high1 / 2, y2 + high2 / 2
        bend = right + 0.9 * _PADDING
        return (
            f'<path d="M{right} {middle1}C{bend} {middle1} {bend} {middle2} {right} {middle2}" '
            f"{style}/>"
        )
    return f'<path d="M{x1 + width1 / 2} {y1 + high1}L{x2 + width2 / 2} {y2}" {style}/>'
