"""Python code as texts and digests that are the same in every process.

Comments, docstrings, layout, the order of imports, and unused imports do not change them.
"""

import ast
import collections
import functools
import hashlib
import json
import linecache
import os
import sys
import types
from collections.abc import Iterable
from typing import Any

import numpy as np

# Longer texts are told by a digest.
LONG = 80
_DIGITS = 16
# What says nothing of what is computed, or only newer versions of Python have.
_NOT_FIELDS = frozenset(("ctx", "kind", "type_comment", "type_ignores"))
# A flag of code since Python 3.13; before, the first constant is a docstring if it is a text.
_HAS_DOCSTRING = 0x4000000
# Called with nothing, or with what makes a missing value.
_CONTAINERS = frozenset(
    ("dict", "list", "set", "defaultdict", "OrderedDict", "Counter")
    + ("WeakKeyDictionary", "WeakValueDictionary", "WeakSet")
)


def digest(text: str | bytes) -> str:
    """Returns the first 64 bits of a SHA-256, as `#` and hexadecimal digits."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return "#" + hashlib.sha256(data).hexdigest()[:_DIGITS]


def parts(tree: ast.Module) -> dict[str, str]:
    """Returns digests of the parts of a module.

    Returns:
      `load()`, `class Net`, `Net.call()`, `GAMMA`, `imports` or `top level` → digest. Code that
      only a main program runs (`if __name__ == '__main__':`) is left out.
    """
    return {name: digest(text) for name, text in texts_of(tree).items()}


def texts_of(tree: ast.Module) -> dict[str, str]:
    """Returns the parts of a module, named as by `parts`, as texts."""
    found: dict[str, list[str]] = collections.defaultdict(list)
    used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    exported = {
        c.value
        for n in tree.body
        if isinstance(n, ast.Assign) and any(getattr(t, "id", "") == "__all__" for t in n.targets)
        for c in ast.walk(n)
        if isinstance(c, ast.Constant) and isinstance(c.value, str)
    }
    imported = []
    for node in _statements(tree.body):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imported += _imported(node, used | exported)
        elif isinstance(node, ast.ClassDef):
            _add_class(node, node.name, found)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found[f"{node.name}()"].append(_canonical(node))
        elif not _is_main(node):
            found[_assigned(node) or "top level"].append(_canonical(node))
    if imported:
        found["imports"].append("\n".join(sorted(set(imported))))
    return {name: "\n".join(texts) for name, texts in found.items()}


def _add_class(node: Any, name: str, found: Any) -> None:
    body = []
    for inner in _statements(node.body):
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
            found[f"{name}.{inner.name}()"].append(_canonical(inner))
        else:
            body.append(_canonical(inner))
    outside = [_canonical(n) for n in (*node.bases, *node.keywords, *node.decorator_list)]
    found[f"class {name}"].append(json.dumps([outside, body]))


def _imported(node: Any, used: Any) -> list[str]:
    """Returns the used names of an import; of a star import, all."""
    if isinstance(node, ast.Import):
        pairs = [(a.name, a.asname or a.name.split(".")[0], "") for a in node.names]
    else:
        within = "." * node.level + (node.module or "")
        pairs = [(a.name, a.asname or a.name, within) for a in node.names]
    return [f"{within}:{name} as {to}" for name, to, within in pairs if to in used or name == "*"]


def _assigned(node: ast.AST) -> str:
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign | ast.AugAssign):
        targets = [node.target]
    else:
        return ""
    names = [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]
    return ", ".join(dict.fromkeys(names))


def _is_main(node: ast.AST) -> bool:
    """Returns whether a statement is `if __name__ == '__main__':`, or `if TYPE_CHECKING:`."""
    if not isinstance(node, ast.If) or node.orelse:
        return False
    test = ast.unparse(node.test)
    return test in ("__name__ == '__main__'", "'__main__' == __name__") or test.endswith(
        "TYPE_CHECKING"
    )


def _statements(body: Any) -> Any:
    """Returns the statements that have an effect: no docstrings or other texts, no `pass`."""
    return [
        node
        for node in body
        if not isinstance(node, ast.Pass)
        and not (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str | type(...))
        )
    ]


def _canonical(node: Any) -> str:
    """Returns a syntax tree as text, the same in all versions of Python that have its syntax."""
    if isinstance(node, list):
        if node and all(isinstance(n, ast.stmt) for n in node):
            node = _statements(node)
        return f"[{','.join(map(_canonical, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    if isinstance(node, ast.Constant):
        return f"{type(node.value).__name__} {scalar(node.value, whole=True)}"
    fields = [
        f"{name}={_canonical(value)}"
        for name, value in ast.iter_fields(node)
        if name not in _NOT_FIELDS and value is not None and value != []
    ]
    return f"{type(node).__name__}({','.join(fields)})"


def source_of(path: str) -> str:
    """Returns the text of a file as it is now; empty if it cannot be read."""
    linecache.checkcache(path)
    return "".join(linecache.getlines(path))


@functools.lru_cache(maxsize=256)
def tree_of(path: str, source: str) -> ast.Module | None:
    """Returns the syntax tree of the text of a file; `None` if it is not Python."""
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError):
        return None


@functools.lru_cache(maxsize=256)
def functions_of(path: str, source: str) -> dict[str, list[types.CodeType]]:
    """Returns the code of all functions in a source text, by qualified name."""
    found = collections.defaultdict(list)

    def add(code: Any) -> None:
        found[code.co_qualname].append(code)
        for inner in code.co_consts:
            if isinstance(inner, types.CodeType):
                add(inner)

    try:
        add(compile(source, path, "exec", dont_inherit=True))
    except (SyntaxError, ValueError):
        return {}
    return found


def _same_code(a: types.CodeType, b: types.CodeType) -> bool:
    return _bytecode(a) == _bytecode(b)


@functools.lru_cache(maxsize=4096)
def _bytecode(code: types.CodeType) -> str:
    """Returns a text of what a function does, for functions without source."""
    docstring = code.co_consts[0] if code.co_consts else None
    if sys.version_info >= (3, 13) and not code.co_flags & _HAS_DOCSTRING:
        docstring = None
    constants = [
        _bytecode(c)
        if isinstance(c, types.CodeType)
        else ""
        if i == 0 and isinstance(docstring, str)
        else _constant(c)
        for i, c in enumerate(code.co_consts)
    ]
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    return json.dumps([code.co_code.hex(), constants, names, code.co_argcount])


def _constant(value: Any) -> str:
    if isinstance(value, frozenset):
        return f"set{sorted(map(_constant, value))}"
    if isinstance(value, tuple):
        return f"({','.join(map(_constant, value))})"
    return f"{type(value).__name__} {scalar(value, whole=True)}"


def scalar(value: Any, whole: bool = False) -> str:
    """Returns a number or text as text; of an absolute path only its last part, unless `whole`."""
    if isinstance(value, np.generic):
        return f"{value.dtype} {value.item()!r}"
    if whole:
        return repr(value)
    if isinstance(value, bytes):
        return f"{len(value)} bytes {digest(value)}"
    if isinstance(value, str):
        # Where data lie differs from machine to machine.
        value = os.path.basename(value.rstrip("/")) if os.path.isabs(value) else value
        return repr(value) if len(value) <= LONG else f"text {digest(value)}"
    return repr(value)


def node_of(code: types.CodeType) -> ast.AST | None:
    """Returns the syntax tree of a function; `None` if its source is missing or differs."""
    source = source_of(code.co_filename)
    tree = tree_of(code.co_filename, source) if source else None
    if tree is None:
        return None
    compiled = functions_of(code.co_filename, source).get(code.co_qualname, ())
    if not any(c.co_firstlineno == code.co_firstlineno and _same_code(c, code) for c in compiled):
        return None
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    found = [n for n in ast.walk(tree) if isinstance(n, kinds) and _names(n, code)]
    if len(found) > 1:
        places = set(code.co_positions())
        found = [
            n
            for n in found
            if isinstance(n, ast.Lambda)
            and (n.body.lineno, n.body.end_lineno, n.body.col_offset, n.body.end_col_offset)
            in places
        ]
    return found[0] if len(found) == 1 else None


def _names(node: ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef, code: types.CodeType) -> bool:
    if isinstance(node, ast.Lambda):
        return code.co_name == "<lambda>" and node.lineno == code.co_firstlineno
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    return node.name == code.co_name and first == code.co_firstlineno


def text_of(code: types.CodeType) -> str:
    """Returns a function's syntax tree as text, or its bytecode if there is no source."""
    node = node_of(code)
    return _bytecode(code) if node is None else _canonical(node)


def keys_read(code: types.CodeType, variable: str) -> set[str] | None:
    """Returns the keys or attributes of a variable that a function reads; `None` if unknown."""
    node = node_of(code)
    keys: set[Any] = set()
    if node is None:
        return None
    inner = set()
    for at in ast.walk(node):
        held = getattr(at, "value", None)
        if not isinstance(held, ast.Name) or held.id != variable:
            continue
        if isinstance(at, ast.Subscript) and isinstance(at.slice, ast.Constant):
            keys.add(at.slice.value)
        elif isinstance(at, ast.Attribute) and at.attr not in ("get", "items", "values", "keys"):
            keys.add(at.attr)
        else:
            continue
        inner.add(id(held))
    others = [n for n in ast.walk(node) if isinstance(n, ast.Name) and n.id == variable]
    return keys if all(id(n) in inner for n in others) and _are_texts(keys) else None


def _are_texts(keys: Iterable[Any]) -> bool:
    return all(isinstance(key, str) for key in keys)


def names_of(code: types.CodeType) -> set[str]:
    """Returns the globals and attributes that a function uses, including its inner functions."""
    names = set(code.co_names)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            names |= names_of(inner)
    return names


def of_other_code(module: str, path: str, source: str) -> dict[str, str]:
    """Returns digests of functions in memory that differ from those in their file.

    This happens if a file changed after it was imported.
    """
    loaded = sys.modules.get(module)
    compiled, found = functions_of(path, source), {}
    functions = []
    for value in list(vars(loaded).values()) if loaded else ():
        if isinstance(value, types.FunctionType):
            functions.append(value)
        elif isinstance(value, type) and value.__module__ == module:
            functions += [v for v in vars(value).values() if isinstance(v, types.FunctionType)]
    for function in functions:
        code = function.__code__
        if os.path.realpath(code.co_filename) != os.path.realpath(path):
            continue
        same = compiled.get(code.co_qualname, ())
        if not any(_same_code(code, other) for other in same):
            found[f"{code.co_qualname}()"] = digest(_bytecode(code))
    return found


@functools.lru_cache(maxsize=256)
def empty_names(path: str, source: str) -> frozenset[str]:
    """Returns the names to which the text of a file assigns an empty container."""
    tree = tree_of(path, source)
    return frozenset(_empty_within(tree.body, "")) if tree else frozenset()


def _empty_within(body: Iterable[ast.AST], prefix: str) -> set[str]:
    names: set[str] = set()
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names |= _empty_within(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            value = node.value
            empty = (isinstance(value, ast.Dict) and not value.keys) or (
                isinstance(value, ast.List | ast.Set) and not value.elts
            )
            called = ""
            if isinstance(value, ast.Call) and not value.keywords and not value.args[1:]:
                called = ast.unparse(value.func).split(".")[-1]
            if empty or called in _CONTAINERS:
                names.update(f"{prefix}{name}" for name in _assigned(node).split(", "))
    return names
