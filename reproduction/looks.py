"""Colours, lines, marks and names for the rows of a figure, distinct within the figure."""

import collections
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import tff_algos
from tff_suite import palette

_COLOURS, _LINES = tuple(palette.COLOURS.values()), tuple(palette.LINES.values())
_MARKS = "osD^vPX*"
# More lines in one panel cannot be distinguished.
MOST_LINES = 8


class Look(NamedTuple):
    """How a row is drawn.

    Attributes:
      colour: Its colour.
      dashes: Its line style, as matplotlib takes it.
      mark: Its mark.
    """

    colour: str
    dashes: Any
    mark: str


def looks_of(names: Iterable[str]) -> dict[str, Look]:
    """Returns how to draw each of a figure's rows; up to 48 differ in colour or line style.

    Up to eight methods each get a different colour: the one that the method declares, unless an
    earlier method of the figure has it. With more methods, those whose names begin alike share a
    colour first.

    Args:
      names: Names of rows: a method, followed by the settings in which its rows differ. In a figure
        of several methods, rows of one method share its colour. In a figure of one method, its rows
        get different colours.
    """
    groups = {name: method_of(name) for name in names}
    if len(set(groups.values())) == 1:
        groups = {name: name for name in groups}
    elif len(set(groups.values())) > MOST_LINES:
        groups = {name: method.split("_")[0] for name, method in groups.items()}
    order = list(dict.fromkeys(groups.values()))
    declared = {group: _declared(group) for group in order}
    colours: dict[str, int] = {}
    for group in sorted(order, key=lambda group: declared[group] is None):
        number = collections.Counter(colours.values())
        rarest = min(range(len(_COLOURS)), key=lambda colour: number[colour])
        own_look = declared[group]
        wanted = rarest if own_look is None else own_look[0]
        colours[group] = rarest if number[wanted] > number[rarest] else wanted
    found, taken = {}, set()
    for name, group in groups.items():
        own_look = declared[group]
        first = order.index(group) if own_look is None else own_look[1]
        own = ((colours[group], (first + i) % len(_LINES)) for i in range(len(_LINES)))
        rest = ((c, line) for c in range(len(_COLOURS)) for line in range(len(_LINES)))
        free = (place for place in (*own, *rest) if place not in taken)
        colour, line = next(free, (colours[group], first % len(_LINES)))
        taken.add((colour, line))
        found[name] = Look(_COLOURS[colour], _LINES[line], _MARKS[len(found) % len(_MARKS)])
    return found


def _declared(method: str) -> tuple[int, int] | None:
    """Returns the place of the colour and of the line style that a method declares."""
    look = tff_algos.get(method).look if method in tff_algos.names() else None
    if look is None:
        return None
    colour, line = look
    return list(palette.COLOURS).index(colour), list(palette.LINES).index(line)


def grouped(names: Iterable[str]) -> list[list[str]]:
    """Returns a figure's rows by panel, at most eight in each.

    More than eight rows are split by method or by the first word of their names. If that needs more
    than twice the minimum number of panels, they are split in their order instead.

    Args:
      names: As for `looks_of`.
    """
    names = list(names)
    for start in (method_of, lambda name: re.split("[ _]", name)[0]):
        groups = collections.defaultdict(list)
        for name in names:
            groups[start(name)].append(name)
        few = len(groups) <= 2 * -(-len(names) // MOST_LINES)
        small = max(map(len, groups.values())) <= MOST_LINES
        if len(names) > MOST_LINES and few and small:
            return list(groups.values())
    each = -(-len(names) // -(-len(names) // MOST_LINES))
    return [names[i : i + each] for i in range(0, len(names), each)]


def method_of(row: str) -> str:
    """Returns the first word of a row's name, usually a method."""
    return row.split(" ")[0]


def displayed(rows: Iterable[str]) -> dict[str, str]:
    """Returns row → its name as tables and figures show it, e.g. `FedAdam tau=0.1`.

    The method has the spelling of its paper. Settings that all rows share are left out. Where two
    rows would have one name, all keep theirs.

    Args:
      rows: Names of rows.
    """
    rows = list(dict.fromkeys(rows))
    settings = [{word for word in row.split(" ")[1:] if "=" in word} for row in rows]
    common = set.intersection(*settings) if len(rows) > 1 else set()
    names = {}
    for row in rows:
        words = [word for word in row.split(" ")[1:] if word not in common]
        names[row] = " ".join([_method_displayed(row), *words])
    return names if len(set(names.values())) == len(rows) else {row: row for row in rows}


def _method_displayed(row: str) -> str:
    """Returns the paper's spelling of the method that a row's name begins with."""
    words = method_of(row).split("_")
    for end in range(len(words), 0, -1):
        name = "_".join(words[:end])
        if name in tff_algos.names():
            return " ".join([tff_algos.get(name).display_name or name, *words[end:]])
    return method_of(row)
