"""A method with one expression of it, or of what it is made from, replaced on the syntax tree.

A mutation is a pair of Python fragments, `("x - eta * g", "x + eta * g")`. The first one matches
wherever the tree has an expression (or a statement) of that form. How it is laid out does not
matter, and neither do the names of local variables: such a name in the fragment stands for any
local variable, the same one wherever it comes up. Names of settings, attributes, functions and
modules are meant as they stand.
"""

import ast
import builtins
import copy
import importlib
import inspect
import sys
import types

from tff_algos import registry

_SHARED = ("tff_algos.averaging", "tff_algos.client")


def of_method(name: str, old: str, new: str) -> types.ModuleType:
    """Returns the module of a method, mutated; it does not affect the method itself.

    A fragment that the method's file does not hold is replaced in the modules that it is made from:
    parts, `averaging`, `client`.

    Raises:
      AssertionError: If none of them holds it.
    """
    module_name, _ = registry.get(name).builder.split(":")
    shared = _uses(module_name)
    for holders in ({module_name}, shared):
        found = {holder: mutated(_source(holder), old, new) for holder in holders}
        trees = {holder: tree for holder, (tree, number) in found.items() if number}
        if trees:
            return _copies(module_name, trees)
    raise AssertionError(f"neither {module_name} nor {', '.join(sorted(shared))} holds {old!r}")


def mutated(source: str, old: str, new: str) -> tuple[ast.Module, int]:
    """Returns the tree of a module with a fragment replaced, and how often that was there."""
    tree = ast.parse(source)
    swap = _Swap(_fragment(old), _fragment(new), _fixed_names(tree))
    tree = ast.fix_missing_locations(swap.visit(tree))
    return tree, swap.number


def _fragment(text):
    (node,) = ast.parse(text or "pass").body
    return node.value if isinstance(node, ast.Expr) else node


def _fixed_names(tree):
    """Returns the names that mean one thing in the whole module: its globals and settings."""
    fixed = {*dir(builtins), "model", "local"}
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            fixed |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            fixed.add(node.name)
        elif isinstance(node, ast.Assign):
            fixed |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            fixed |= {argument.arg for argument in node.args.kwonlyargs}
    return fixed


class _Swap(ast.NodeTransformer):
    """Replaces what matches a fragment; `number` counts it."""

    def __init__(self, old, new, fixed):
        self._old, self._new, self._fixed = old, new, fixed
        self.number = 0

    def visit(self, node):
        names = {}
        if isinstance(node, type(self._old)) and self._matches(self._old, node, names):
            self.number += 1
            return _Renamed(names).visit(copy.deepcopy(self._new))
        return self.generic_visit(node)

    def _matches(self, old, node, names):
        if isinstance(old, ast.Name) and old.id not in self._fixed:
            known = names.setdefault(old.id, getattr(node, "id", None))
            return isinstance(node, ast.Name) and known == node.id not in self._fixed
        if isinstance(old, list):
            return (
                isinstance(node, list)
                and len(old) == len(node)
                and all(self._matches(a, b, names) for a, b in zip(old, node, strict=True))
            )
        if isinstance(old, ast.expr_context):
            return True
        if isinstance(old, ast.Call) and isinstance(old.func, ast.Name):
            called = getattr(getattr(node, "func", None), "id", None)
            if old.func.id != called:
                return False
            names[called] = called
        if isinstance(old, ast.AST):
            return type(old) is type(node) and all(
                self._matches(value, getattr(node, field), names)
                for field, value in ast.iter_fields(old)
            )
        return old == node


class _Renamed(ast.NodeTransformer):
    """Gives local variables of a fragment the names that they have where it matched."""

    def __init__(self, names):
        self._names = names

    def visit_Name(self, node):
        return ast.Name(self._names.get(node.id, node.id), node.ctx)


def _source(module_name):
    return inspect.getsource(importlib.import_module(module_name))


def _module_of(value):
    """Returns the name of the module that a value is, or is defined in."""
    if isinstance(value, types.ModuleType):
        return value.__name__
    return getattr(value, "__module__", None) if callable(value) else None


def _is_shared(module_name):
    return module_name in _SHARED or (module_name or "").startswith("tff_algos.parts.")


def _uses(module_name):
    """Returns the shared modules that a module is made from, at any depth."""
    found, left = set(), [module_name]
    while left:
        values = vars(importlib.import_module(left.pop())).values()
        new = {m for m in map(_module_of, values) if _is_shared(m)} - found - {module_name}
        found |= new
        left += new
    return found


def _copies(module_name, trees):
    """Returns a copy of a module, made from copies of the shared ones, some of other trees."""
    copies = {}

    def copied(name):
        if name not in copies:
            original = importlib.import_module(name)
            copies[name] = module = types.ModuleType(f"{name}_mutant")
            sys.modules[module.__name__] = module  # Where dataclasses look it up.
            tree = trees.get(name) or ast.parse(_source(name))
            exec(compile(tree, name, "exec"), module.__dict__)
            for key, value in list(vars(original).items()):
                of = _module_of(value)
                if _is_shared(of) and of != name:
                    other = copied(of)
                    is_module = isinstance(value, types.ModuleType)
                    setattr(module, key, other if is_module else getattr(other, value.__name__))
        return copies[name]

    return copied(module_name)
