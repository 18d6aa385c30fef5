"""Renders formulas and tables of symbols from docstrings as HTML with MathML.

The docstring of a method has its update in plain text: `x_k ← x_k - η_l ∇f(x_k; b)`. Browsers
render MathML without a script or a network. Every character of the text is kept, in order.
"""

import html
import re
from collections.abc import Iterator, Sequence

_TOKEN = re.compile(
    r"\s+"
    r"|\d+(?:\.\d+)?(?:e-?\d+)?"
    r"|[^\W\d_]+(?:_(?:\{[^}]*\}|[^\W_]+))*_?"
    r"|[_^]\{[^}]*\}|[_^]"
    r"|."
)
_RAISED = {"²": "2", "³": "3", "⁺": "+", "ᵀ": "T"}
_NO_WORDS = {"lr", "LID"}
_GREEK = re.compile(r"[α-ωΑ-ΩϕϵΔ∇Σ]")
_OPEN, _CLOSE = "([{⟨⌊", ")]}⟩⌋"


def lines_html(lines: Sequence[str]) -> str:
    """Returns lines of formulas and words as one block of HTML."""
    least = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
    shown = []
    for line in lines:
        deep = len(line) - len(line.lstrip()) - least
        shown.append(f'<div style="padding-left: {deep * 0.5}em">{line_html(line.strip())}</div>')
    return f'<div class="formulas">{"".join(shown)}</div>'


def line_html(line: str) -> str:
    """Returns a line as HTML: words as text, everything else as MathML."""
    shown, held, depth = [], [], 0

    def flush():
        while held and held[-1].isspace():
            held.pop()
        if held:
            shown.append(f"<math><mrow>{_math(held)}</mrow></math> ")
            held.clear()

    tokens = _TOKEN.findall(line)
    for token, following in zip(tokens, [*tokens[1:], ""], strict=True):
        depth += (token in _OPEN) - (token in _CLOSE)
        outside = depth <= 0 and token not in _CLOSE
        if outside and (token in (";", ":") or _is_word(token, following)):
            flush()
            shown.append(html.escape(token) + ("" if following in (":", ";", ",", ".") else " "))
        elif held or not token.isspace():
            held.append(token)
    flush()
    return "".join(shown).strip()


def _is_word(token: str, following: str) -> bool:
    """Returns whether a token is English: at least two letters, and not the name of a function."""
    return (
        len(token) > 1
        and token.isalpha()
        and not _GREEK.search(token)
        and token not in _NO_WORDS
        and following not in ("(", "_", "^")
    )


def _math(tokens: Sequence[str]) -> str:
    parts: list[str] = []
    source = iter([t for t in tokens if not t.isspace()])
    for token in source:
        if token[0] in "_^" and parts:
            body = token[1:].strip("{}") or next(source, "")
            kind = "msub" if token[0] == "_" else "msup"
            parts.append(
                f"<{kind}>{parts.pop()}<mrow>{_math(_TOKEN.findall(body))}</mrow></{kind}>"
            )
        elif token in _RAISED and parts:
            parts.append(f"<msup>{parts.pop()}<mn>{_RAISED[token]}</mn></msup>")
        else:
            parts.append(_atom(token))
    return "".join(parts)


def _atom(token: str) -> str:
    name, *below = token.split("_", 1)
    if name and (name[0].isalpha() or name[0] == "∇"):
        base = f"<mi>{html.escape(name)}</mi>"
        if below and below[0]:
            inner = _math(_TOKEN.findall(below[0].strip("{}")))
            return f"<msub>{base}<mrow>{inner}</mrow></msub>"
        return base
    if token[0].isdigit():
        return f"<mn>{token}</mn>"
    stretchy = ' stretchy="false"' if token in _OPEN + _CLOSE + "‖|" else ""
    return f"<mo{stretchy}>{html.escape(token)}</mo>"


def blocks(docstring: str) -> Iterator[tuple[str, list[str]]]:
    """Yields the parts of a method's docstring, in order.

    Yields:
      `text`, `symbols` (a table), `formulas` or `deviations`, and the part's lines.
    """
    kind, held = "text", []
    for line in [*docstring.splitlines(), ""]:
        if line.strip():
            now = kind
            if line.startswith("Deviations"):
                now = "deviations"
            elif not line.startswith(" "):
                now = "text"
            elif kind != "deviations" and (not held or kind == "text"):
                now = "symbols" if line.split()[0] == "symbol" else "formulas"
            if now != kind and held:
                yield kind, held
                held = []
            kind = now
            held.append(line)
        elif held and kind != "deviations":
            yield kind, held
            kind, held = "text", []
        elif held:
            held.append(line)
    if held:
        yield kind, held


def symbols(lines: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Returns a table of symbols: argument → symbol and source of its default."""
    names = ("symbol", "argument", "default", "from")
    starts = [lines[0].index(name) for name in names]
    rows: list[list[str]] = []
    for line in lines[1:]:
        cells = [
            line[start:end].strip() for start, end in zip(starts, [*starts[1:], None], strict=True)
        ]
        if cells[0] or not rows:
            rows.append(cells)
        else:
            rows[-1] = [f"{a} {b}".strip() for a, b in zip(rows[-1], cells, strict=True)]
    return {argument.split(" ")[0]: (symbol, source) for symbol, argument, _, source in rows}
