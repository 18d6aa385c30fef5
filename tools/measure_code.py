"""Counts what CONTRIBUTING promises of the code: lines of methods, repetition, longest functions.

    python tools/measure_code.py

A line of code is repeated if it belongs to a run of at least `RUN` lines that another method's file
holds as well. Blank lines, comments, docstrings, imports, settings and the signature of `build`,
which a file must have, are in no run; the share is one of all lines of the files.
"""

import ast
import collections
import pathlib
import sys

REPO = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO))

from tff_suite import command_line, parser

PARSER = parser.Parser(__doc__)
PARSER.positional("folder", "folder of methods; by default tff_algos/methods", required=False)

RUN = 3
_LONGEST = 15


def code_lines(path: pathlib.Path) -> list[str]:
    """Returns the stripped lines of code of a file that could be elsewhere."""
    source = path.read_text()
    tree = ast.parse(source)
    aside = [node for node in tree.body if isinstance(node, ast.Assign) and _is_setting(node)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            aside.append(node)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            if ast.get_docstring(node):
                aside.append(node.body[0])
    left_out = {
        n
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("build")
        for n in range(node.lineno, node.body[0].lineno)
    }
    left_out |= {n for node in aside for n in range(node.lineno, node.end_lineno + 1)}
    return [
        line.strip()
        for number, line in enumerate(source.splitlines(), 1)
        if number not in left_out and line.strip() and not line.strip().startswith("#")
    ]


def _is_setting(node: ast.Assign) -> bool:
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return bool(names & {"Hparam", "MethodSpec"})


def repeated(files: dict[str, list[str]]) -> dict[str, int]:
    """Returns for each file how many of its lines are in a run that another file holds."""
    holders = collections.defaultdict(set)
    for name, lines in files.items():
        for i in range(len(lines) - RUN + 1):
            holders[tuple(lines[i : i + RUN])].add(name)
    counts = {}
    for name, lines in files.items():
        marked = set()
        for i in range(len(lines) - RUN + 1):
            run = lines[i : i + RUN]
            # Brackets that close are no text of their own.
            if len(holders[tuple(run)]) > 1 and any(len(line) > 2 for line in run):
                marked.update(range(i, i + RUN))
        counts[name] = len(marked)
    return counts


def functions(root: pathlib.Path) -> list[tuple[int, str]]:
    """Returns (lines, file:function) of all functions, the longest first, docstrings aside."""
    found = []
    for folder in ("reproduction", "simulation", "tasks", "tff_algos", "tff_suite"):
        for path in sorted((root / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef):
                    start = node.lineno
                    text = node.body[0]
                    length = node.end_lineno - start + 1
                    if ast.get_docstring(node):
                        length -= text.end_lineno - text.lineno + 1
                    found.append((length, f"{path.relative_to(root)}:{node.name}"))
    return sorted(found, reverse=True)


@command_line.reported
def main(arguments: list[str]) -> int:
    """Prints the counts; returns the exit code."""
    root = REPO
    given = PARSER.parse(arguments).folder
    folder = pathlib.Path(given) if given else root / "tff_algos" / "methods"
    files = {p.name: code_lines(p) for p in sorted(folder.glob("*.py")) if p.name != "__init__.py"}
    whole = {name: len((folder / name).read_text().splitlines()) for name in files}
    counts = repeated(files)
    total, same = sum(whole.values()), sum(counts.values())
    print(f"{len(files)} files, {total} lines, {same} of them repeated ({same / total:.1%})")
    print(f"  {'':24} lines  code  repeated")
    for name, lines in files.items():
        print(f"  {name:24}{whole[name]:6}{len(lines):6}{counts[name]:10}")
    long = functions(root)
    print(f"{sum(length > 60 for length, _ in long)} functions of more than 60 lines; the longest:")
    for length, name in long[:_LONGEST]:
        print(f"  {length:5}  {name}")
    return 0


if __name__ == "__main__":
    command_line.begin()
    command_line.run(main)
