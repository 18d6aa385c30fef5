"""Every Python file of the repository belongs to exactly one Bazel target."""

import ast
import collections
import os
import pathlib
import re

import pytest

_REPO = pathlib.Path(__file__).resolve().parent.parent


def _folders(root: pathlib.Path):
    for folder, subfolders, files in os.walk(root):
        # A folder with pyvenv.cfg is a virtual environment, whatever its name; bazel-* are links.
        subfolders[:] = sorted(
            name
            for name in subfolders
            if not name.startswith(".")
            and name != "__pycache__"
            and not (pathlib.Path(folder) / name / "pyvenv.cfg").exists()
        )
        yield pathlib.Path(folder), subfolders, files


def _python_files(root: pathlib.Path) -> set[str]:
    return {
        (folder / name).relative_to(root).as_posix()
        for folder, _, files in _folders(root)
        for name in files
        if name.endswith(".py")
    }


def _pattern(glob: str) -> re.Pattern:
    parts = []
    for part in re.split(r"(\*\*/|\*\*|\*)", glob):
        parts.append({"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*"}.get(part, re.escape(part)))
    return re.compile("".join(parts))


def _package_files(package: pathlib.Path) -> list[str]:
    """Files that a glob in this package sees: not those of packages below it."""
    found = []
    for folder, subfolders, files in _folders(package):
        subfolders[:] = [name for name in subfolders if not (folder / name / "BUILD").exists()]
        found += [(folder / name).relative_to(package).as_posix() for name in files]
    return found


def _sources(value: ast.expr, package: pathlib.Path, names: dict[str, list[str]]) -> list[str]:
    """The files that an expression in a BUILD file stands for; nothing is executed."""
    if isinstance(value, ast.Constant):
        return [value.value]
    if isinstance(value, ast.Name):
        return names[value.id]
    if isinstance(value, (ast.List, ast.Tuple)):
        return [source for item in value.elts for source in _sources(item, package, names)]
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        return _sources(value.left, package, names) + _sources(value.right, package, names)
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "glob":
        keywords = {keyword.arg: keyword.value for keyword in value.keywords}
        include = value.args[0] if value.args else keywords["include"]
        included, excluded = (
            [_pattern(glob) for glob in _sources(globs, package, names)]
            for globs in (include, keywords.get("exclude", ast.List(elts=[])))
        )
        return [
            name
            for name in _package_files(package)
            if any(pattern.fullmatch(name) for pattern in included)
            and not any(pattern.fullmatch(name) for pattern in excluded)
        ]
    raise ValueError(f"{package}/BUILD: this test can't read {ast.unparse(value)}")


def _owned(root: pathlib.Path) -> collections.Counter[str]:
    """How many targets name each Python file, existing or not."""
    owned = collections.Counter()

    def visit(node: ast.AST, package: pathlib.Path, names: dict[str, list[str]]):
        if isinstance(node, ast.ListComp):
            (loop,) = node.generators
            for source in _sources(loop.iter, package, names):
                visit(node.elt, package, {**names, loop.target.id: [source]})
            return
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg == "srcs":
                    owned.update(
                        (package / source).relative_to(root).as_posix()
                        for source in _sources(keyword.value, package, names)
                        if source.endswith(".py")
                    )
        for child in ast.iter_child_nodes(node):
            visit(child, package, names)

    for folder, _, files in _folders(root):
        if "BUILD" in files:
            visit(ast.parse((folder / "BUILD").read_text()), folder, {})
    return owned


def _faults(root: pathlib.Path) -> dict[str, list[str]]:
    files, owned = _python_files(root), _owned(root)
    return {
        "in no target": sorted(files - owned.keys()),
        "in several targets": sorted(name for name, count in owned.items() if count > 1),
        "in a target but missing": sorted(owned.keys() - files),
    }


def test_every_python_file_is_in_exactly_one_target():
    assert _python_files(_REPO), "found no Python file to look at"
    faults = {fault: names for fault, names in _faults(_REPO).items() if names}
    assert not faults


_TREE = {
    "BUILD": 'py_binary(name = "run", srcs = ["run.py"], deps = ["//lib"])',
    "run.py": "",
    "lib/BUILD": 'py_library(name = "lib", srcs = glob(["**/*.py"], exclude = ["**/test_*.py"]))\n'
    '[py_test(name = f[:-3], srcs = [f]) for f in glob(["**/test_*.py"])]',
    "lib/a.py": "",
    "lib/deep/b.py": "",
    "lib/deep/test_b.py": "",
    ".hidden/c.py": "",
    "env/pyvenv.cfg": "",
    "env/lib/d.py": "",
}


@pytest.mark.parametrize(
    ("changes", "fault", "names"),
    [
        ({}, None, []),
        ({"stray.py": ""}, "in no target", ["stray.py"]),
        (
            {"lib/deep/BUILD": 'py_library(name = "deep", srcs = ["b.py"])'},
            "in no target",
            ["lib/deep/test_b.py"],
        ),
        (
            {"lib/BUILD": _TREE["lib/BUILD"] + '\npy_library(name = "a", srcs = ["a.py"])'},
            "in several targets",
            ["lib/a.py"],
        ),
        (
            {"BUILD": 'py_binary(name = "run", srcs = ["run.py"] + ["gone.py", ":made"])'},
            "in a target but missing",
            ["gone.py"],
        ),
    ],
)
def test_faults_are_found(tmp_path, changes, fault, names):
    for path, text in {**_TREE, **changes}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert {key: value for key, value in _faults(tmp_path).items() if value} == (
        {fault: names} if fault else {}
    )
