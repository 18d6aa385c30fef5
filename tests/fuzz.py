"""What tests of damaged files and odd flags share: hypothesis strategies, and ways to do damage."""

import contextlib
import json
import pathlib
import shutil
from typing import NamedTuple

import hypothesis
from hypothesis import strategies as st

# The same examples in every quick run; the long tier looks for new ones.
QUICK = hypothesis.settings(max_examples=60, deadline=None, derandomize=True, database=None)
LONG = hypothesis.settings(max_examples=3000, deadline=None)

_NUMBERS = ["nan", "inf", "-inf", "1e400", "-0", "1e-320", str(10**12), str(-(10**30)), "1_0", "٣"]
_WORDS = ["", " ", ",", "=", "--", "a\0b", "\udcff", "é", "\u2028", "true", "None", "x" * 5000]
VALUES = st.one_of(
    st.sampled_from(_NUMBERS + _WORDS),
    st.integers().map(str),
    st.floats().map(str),
    st.text(st.characters(), max_size=20),
)
# What a JSON file may hold in the place of what belongs there.
JSONS = [None, True, -1, 10**30, float("nan"), float("inf"), "x", [], {}, [[0]], {"a": {}}]


class Damage(NamedTuple):
    """Something that happens to one file of a folder.

    Attributes:
      file: Which file, counted round and round.
      kind: What happens, one of `KINDS`.
      place: Where in the file, counted round and round.
      value: What is put there: number of an entry of `JSONS`, and more bytes for `garble`.
    """

    file: int
    kind: str
    place: int
    value: int

    def apply(self, folder: pathlib.Path) -> pathlib.Path:
        """Does it, and returns the file."""
        files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != ".lock")
        path = files[self.file % len(files)]
        content = path.read_bytes()
        place = self.place % (len(content) + 1)
        kind = self.kind
        if kind == "json" and path.suffix != ".json":
            kind = "cell" if path.suffix == ".csv" else "garble"
        if kind == "cell" and path.suffix != ".csv":
            kind = "garble"
        if kind in ("delete", "folder"):
            path.unlink()
            if kind == "folder":
                path.mkdir()
        elif kind == "truncate":
            path.write_bytes(content[:place])
        elif kind == "flip" and content:
            place %= len(content)
            flipped = content[place] ^ (1 << self.value % 8)
            path.write_bytes(content[:place] + bytes([flipped]) + content[place + 1 :])
        elif kind == "garble":
            words = [b"\xff\xfe", b"\0" * 9, b"[" * 100_000, b'"', b"\n", b",,,", b"9" * 5000]
            path.write_bytes(content[:place] + words[self.value % len(words)] + content[place:])
        elif kind == "json":
            with contextlib.suppress(ValueError, RecursionError):  # Damaged before.
                path.write_text(json.dumps(_with_node(json.loads(content), self)))
        elif kind == "cell":
            _replace_cell(path, content.decode(errors="replace"), self)
        return path


KINDS = ("delete", "folder", "truncate", "flip", "garble", "json", "cell")
DAMAGES = st.builds(
    Damage,
    st.integers(0, 50),
    st.sampled_from(KINDS),
    st.integers(0, 10_000),
    st.integers(0, 100),
)


def _with_node(content, damage):
    """Returns a JSON value with one of its nodes replaced, the root among them."""
    nodes = []

    def visit(node):
        if isinstance(node, dict | list):
            for key in list(node) if isinstance(node, dict) else range(len(node)):
                nodes.append((node, key))
                visit(node[key])

    root = [content]
    visit(root)
    parent, key = nodes[damage.place % len(nodes)]
    parent[key] = JSONS[damage.value % len(JSONS)]
    return root[0]


def _replace_cell(path, text, damage):
    lines = [line.split(",") for line in text.splitlines()]
    cells = [(i, j) for i, line in enumerate(lines) for j in range(len(line))]
    if cells:
        i, j = cells[damage.place % len(cells)]
        words = ["", "x", "nan", "1e400", "-1", "1,2", "²", '"', "9" * 5000, "round_num"]
        lines[i][j] = words[damage.value % len(words)]
    path.write_text("".join(",".join(line) + "\n" for line in lines))


def copied(folder: pathlib.Path, to: pathlib.Path) -> pathlib.Path:
    """Returns a fresh copy of a folder at `to`."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(folder, to)
    return to
