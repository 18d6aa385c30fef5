"""Counts lines of code by folder, here and at another commit.

    python tools/count_lines.py --commit=HEAD~1

A line of code is not blank, not a comment and not part of a docstring. Without a commit, only files
tracked by git are counted.
"""

import ast
import collections
import io
import pathlib
import subprocess
import sys
import tokenize

REPO = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO))

from tff_suite import command_line, parser, tables

PARSER = parser.Parser(__doc__)
PARSER.flag("commit", help="Commit to compare with. By default there is no comparison.")
tables.add_flag(PARSER)

SUITE = ("reproduction", "simulation", "tasks", "tff_algos", "tff_suite")


def lines_of_code(source: str) -> int:
    """Returns the number of lines with code in a module."""
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in (*skipped, tokenize.ENDMARKER):
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if ast.get_docstring(node) is not None:
                text = node.body[0]
                lines -= set(range(text.lineno, text.end_lineno + 1))
    return len(lines)


def _git(*arguments):
    return subprocess.run(["git", *arguments], cwd=REPO, capture_output=True, check=True).stdout


def counted(commit: str | None) -> collections.Counter:
    """Returns the number of all lines and of lines of code by folder, `(folder, kind)` → number.

    Args:
      commit: The commit; `None` is the working tree.
    """
    if commit is None:
        names = _git("ls-files", "-z", "*.py").decode().split("\0")
        sources = {name: REPO / name for name in names if name and (REPO / name).exists()}
        sources = {name: path.read_text("utf-8") for name, path in sources.items()}
    else:
        names = _git("ls-tree", "-r", "-z", "--name-only", commit).decode().split("\0")
        names = [name for name in names if name.endswith(".py")]
        sources = {name: _git("show", f"{commit}:{name}").decode("utf-8") for name in names}
    found = collections.Counter()
    for name, source in sources.items():
        folder = name.split("/")[0] if "/" in name else "."
        found[folder, "all"] += len(source.splitlines())
        found[folder, "code"] += lines_of_code(source)
    return found


@command_line.reported
def main(arguments: list[str]) -> int:
    """Prints the counts; returns the exit code."""
    options = PARSER.parse(arguments)
    commit = options.commit
    here = counted(None)
    there = counted(commit) if commit else collections.Counter()
    folders = sorted({folder for folder, _ in [*here, *there]})
    rows = [(folder, [folder]) for folder in folders] + [("the suite", SUITE)]
    with tables.printed(options.json) as table:
        for title, parts in rows:
            now, before = (
                [sum(of[part, kind] for part in parts) for kind in ("all", "code")]
                for of in (here, there)
            )
            record = {"folder": title, "lines": now[0], "code": now[1]}
            if commit:
                record |= {"change": now[0] - before[0], "change_of_code": now[1] - before[1]}
            table.add(record)
    return 0


if __name__ == "__main__":
    command_line.begin()
    command_line.run(main)
