"""How each row of a figure is drawn: a method has the same look in all of them."""

import collections
import zlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import tff_algos
from tff_suite import palette

_COLOURS, _LINES = tuple(palette.COLOURS), tuple(palette.LINES)
# The last line style is for methods that declare it: more than 40 would share a look.
_CYCLE = 5
_MARKS = "osD^vPX*"
# All pairs of a colour and a line style.
_PLACES = [(i % len(_COLOURS), i % _CYCLE) for i in range(len(_COLOURS) * _CYCLE)]

# Rows of papers that are no methods of their own. FedDA's: a scheme has a colour, what its clients
# run a line style.
_ROWS = {
    "qfedavg_reweight": ("purple", "dotted"),
    "fedlocal_sgdm": ("black", "dashed"),
    "fedlocal_adam": ("black", "dash_dot"),
    "fedlocal_adagrad": ("black", "dash_dot_dot"),
    "mfl_sgdm": ("green", "solid"),
    "mfl_adam": ("green", "dashed"),
    "mfl_adagrad": ("green", "dotted"),
    "mimelite_sgdm": ("blue", "solid"),
    "mimelite_adam": ("blue", "dashed"),
    "mimelite_adagrad": ("blue", "dotted"),
    "fedopt_sgdm": ("orange", "solid"),
    "fedopt_adam": ("orange", "dashed"),
    "fedopt_adagrad": ("orange", "dash_dot"),
}


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
    """Returns how each of a figure's rows is drawn; up to 40 of them differ.

    Args:
      names: Names of rows: a method, and the settings in which rows of it differ. Rows of one
        method have its colour in a figure of several methods, and all colours in one of their own.
    """
    names = list(dict.fromkeys(names))
    of_method = {name: name.split(" ")[0] for name in names}
    number = collections.Counter(of_method.values())
    if len(number) == 1 and len(names) > 1:
        return {name: _look(i, i % _CYCLE) for i, name in enumerate(names)}
    known = _declared()
    places = {method: known[method] for method in number if method in known}
    for method in number:
        if method not in places:
            places[method] = _free_place(method, list(places.values()))
    seen, found, taken = collections.Counter(), {}, set()
    for name, method in of_method.items():
        colour, line = places[method]
        place = colour, (line + seen[method]) % _CYCLE if seen[method] else line
        if place in taken or (seen[method] and place in places.values()):
            # Of its own colour if there is one, and none that another method begins with.
            rest = [p for p in _PLACES if p not in taken and p not in places.values()]
            place = min(rest, key=lambda p: p[0] != colour, default=place)
        taken.add(place)
        found[name] = _look(*place, seen[method])
        seen[method] += 1
    return found


def _declared() -> dict[str, tuple[int, int]]:
    specs = [tff_algos.get(name) for name in tff_algos.names()]
    named = {spec.name: spec.look for spec in specs if spec.look} | _ROWS
    return {name: (_COLOURS.index(c), _LINES.index(line)) for name, (c, line) in named.items()}


def _look(colour: int, line: int, further: int = 0) -> Look:
    colour %= len(_COLOURS)
    mark = _MARKS[(colour + 3 * line + further) % len(_MARKS)]
    return Look(palette.COLOURS[_COLOURS[colour]], palette.LINES[_LINES[line]], mark)


def _free_place(name, taken) -> tuple[int, int]:
    """Returns a colour and a line style by the name, not one that is taken while there are free."""
    start = zlib.crc32(name.encode()) % len(_PLACES)
    every = _PLACES[start:] + _PLACES[:start]
    colours = {colour for colour, _ in taken}
    other = (place for place in every if place[0] not in colours)
    free = (place for place in every if place not in taken)
    return next(other, None) or next(free, None) or every[0]
