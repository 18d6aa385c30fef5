"""Colours and line styles of figures by name, for methods and others that declare their look."""

from typing import Any

# Okabe and Ito's colours, which colour-blind readers can tell apart; wine is in place of yellow,
# which is too pale for a line.
COLOURS = {
    "black": "#000000",
    "blue": "#0072B2",
    "vermilion": "#D55E00",
    "green": "#009E73",
    "purple": "#CC79A7",
    "orange": "#E69F00",
    "sky": "#56B4E9",
    "wine": "#882255",
}
# As matplotlib takes them.
LINES: dict[str, Any] = {
    "solid": "-",
    "dashed": (0, (5, 1.5)),
    "dotted": (0, (1.3, 1.3)),
    "dash_dot": (0, (7, 1.5, 1.3, 1.5)),
    "dash_dot_dot": (0, (7, 1.5, 1.3, 1.5, 1.3, 1.5)),
    "short_dashed": (0, (3, 2.5)),
}


def check(owner: str, look: tuple[str, str]) -> None:
    """Refuses a look that is not a name of `COLOURS` and one of `LINES`.

    Args:
      owner: Name of the part that declares it, for the error.
      look: Colour and line style.

    Raises:
      ValueError: If either is unknown.
    """
    for name, known in zip(look, (COLOURS, LINES), strict=True):
        if name not in known:
            raise ValueError(f"{owner}: look={look} must name one of {', '.join(known)}.")
