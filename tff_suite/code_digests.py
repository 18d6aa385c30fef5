"""Digests of Python code and values that are the same in every process.

They cover two things. For the user's modules, and for functions in a script or notebook: the syntax
trees without docstrings, part by part: `my_task.py` → `load()` → digest. For objects such as a
loss: the values that they hold, that is closures, defaults, arguments of partials, state of
instances, and globals that functions read.

Comments, docstrings, layout, the order of definitions and of imports, and unused imports do not
change a digest. Neither do paths, hash seeds or the order of dictionaries.

The suite's own modules have versions instead, and installed packages are only named.
"""

import ast
import collections
import dataclasses
import enum
import functools
import json
import os
import pathlib
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from tff_suite.code_places import SUITE, imports_of, is_own, is_suites, label, path_of
from tff_suite.code_texts import (
    LONG,
    digest,
    empty_names,
    functions_of,
    keys_read,
    names_of,
    node_of,
    of_other_code,
    parts,
    scalar,
    source_of,
    text_of,
    texts_of,
    tree_of,
)

# Packages of one content under two names.
_SAME = {"tf_keras": "keras", "keras_core": "keras"}
# Parts of a container that are told one by one.
_FEW = 12
# Modules whose objects are of a process, and change while it works.
_OF_THE_PROCESS = frozenset(
    ("_io", "_thread", "asyncio", "concurrent", "io", "logging", "multiprocessing", "queue")
    + ("random", "socket", "subprocess", "threading", "tqdm", "weakref")
)
# What Python, and not the user, puts into a class.
_OF_CLASSES = frozenset(
    ("__module__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__qualname__")
    + ("__dataclass_fields__", "__dataclass_params__", "__match_args__", "__slots__", "__hash__")
    + ("__abstractmethods__", "__parameters__", "__orig_bases__", "__firstlineno__")
    + ("__static_attributes__", "__annotate__", "__annotate_func__", "__annotations_cache__")
)
# Classes of settings: of argparse, types and absl.
_SETTINGS = frozenset(("Namespace", "SimpleNamespace", "FlagValues", "_FlagValuesWrapper"))
_SCALARS = bool | int | float | complex | str | bytes | None | types.EllipsisType | np.generic


@dataclasses.dataclass
class Found:
    """The code and values that objects are made of.

    Attributes:
      code: `my_task.py` → `load()` → digest of its syntax tree.
      values: Description (`loss, factor`) → its value as text, or a digest (`#...`).
    """

    code: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)
    values: dict[str, str] = dataclasses.field(default_factory=dict)


class Describer:
    """Inspects objects, and the modules that they reach.

    Attributes:
      found: The findings so far.
      packages: Installed packages that are treated as the user's.
    """

    def __init__(
        self,
        handlers: Iterable[Callable[["Describer", str, Any], bool]] = (),
        packages: Iterable[str] = (),
        places: Iterable[str] = (),
    ):
        """Initialises the describer.

        Args:
          handlers: Functions for a library's objects. Each is called with this describer, the
            description and the object, and returns whether it has handled the object.
          packages: Installed packages that are treated as the user's.
          places: Folders that may be elsewhere the next time.
        """
        self._places = tuple(places)
        self._known: dict[int, tuple[str, Any]] = {}
        self.found = Found()
        self._handlers, self.packages = tuple(handlers), frozenset(packages)
        self._values = self.found.values
        self._seen: dict[int, tuple[str, Any]] = {}
        self._modules: set[str] = set()

    def tell(self, name: str, text: str) -> None:
        """Adds a value."""
        self._values[name] = text

    def know(self, name: str, value: Any) -> None:
        """Lets an object that is inspected elsewhere be recorded by its name only."""
        self._known[id(value)] = name, value

    def look(self, name: str, value: Any) -> None:
        """Inspects an object.

        Args:
          name: Its description.
          value: The object.
        """
        if isinstance(value, _SCALARS) and not isinstance(value, enum.Enum):
            self.tell(name, scalar(self._without_place(value)))
        elif id(value) in self._known:
            self.tell(name, self._known[id(value)][0])
        elif any(handler(self, name, value) for handler in self._handlers):
            pass
        elif isinstance(value, np.ndarray):
            self.tell(name, describe_array(value))
        elif isinstance(value, enum.Enum):
            self.tell(name, f"{type(value).__qualname__}.{value.name}")
        elif isinstance(value, os.PathLike):
            self.look(name, os.fspath(value))
        elif isinstance(value, Mapping):
            pairs = {_key(k): v for k, v in value.items()}
            self._look_within(name, value, {f"[{k}]": pairs[k] for k in sorted(pairs)})
        elif isinstance(value, list | tuple | collections.deque):
            self._look_within(name, value, {f"[{i}]": v for i, v in enumerate(value)})
        elif isinstance(value, set | frozenset):
            self.tell(name, f"set of {len(value)} {digest(json.dumps(sorted(map(_key, value))))}")
        elif isinstance(value, types.ModuleType):
            self.module(value.__name__)
        else:
            self._look_once(name, value)

    def _without_place(self, value: Any) -> Any:
        for place in self._places:
            if isinstance(value, str) and (f"{value}/").startswith(f"{place.rstrip('/')}/"):
                return "the data folder" + value[len(place.rstrip("/")) :]
        return value

    def _look_within(self, name: str, value: Any, inner: Mapping[str, Any]) -> None:
        """Inspects the content of a container; with many entries, the whole has one digest."""
        if id(value) in self._seen:
            self.tell(name, "itself")
            return
        self._seen[id(value)] = name, value
        outer, self._values = self._values, {}
        try:
            for key, item in inner.items():
                self.look(f"{name}{key}", item)
            told = self._values
        finally:
            self._values = outer
            del self._seen[id(value)]
        if len(told) > _FEW or not told:
            kind = type(value).__name__
            self.tell(name, f"{kind} of {len(inner)} {digest(json.dumps(sorted(told.items())))}")
        else:
            self._values.update(told)

    def _look_once(self, name: str, value: Any) -> None:
        if id(value) in self._seen:
            self.tell(name, f"as {self._seen[id(value)][0]}")
            return
        self._seen[id(value)] = name, value
        if isinstance(value, functools.partial):
            self.look(name, value.func)
            for i, argument in enumerate(value.args):
                self.look(f"{name}, argument {i + 1}", argument)
            for key in sorted(value.keywords):
                self.look(f"{name}, {key}", value.keywords[key])
        elif isinstance(value, types.MethodType):
            self.look(name, value.__func__)
            self.look(f"{name}, its object", value.__self__)
        elif isinstance(value, types.FunctionType):
            self._look_at_function(name, value)
        elif isinstance(value, staticmethod | classmethod):
            self.look(name, value.__func__)
        elif isinstance(value, property):
            for function in filter(None, (value.fget, value.fset)):
                self.look(name, function)
        elif isinstance(value, type):
            self._look_at_class(name, value)
        elif callable(getattr(value, "__wrapped__", None)):  # functools.lru_cache
            self.look(name, value.__wrapped__)
        elif isinstance(value, types.BuiltinFunctionType | np.ufunc):
            module = getattr(value, "__module__", None) or ""
            self.tell(name, f"{self._called(module)} {value.__name__}()".strip())
        elif hasattr(value, "to_numpy"):  # A table or series of pandas's.
            self.tell(name, f"{type(value).__name__} {describe_array(value.to_numpy())}")
        else:
            self._look_at_instance(name, value)

    def is_users(self, value: Any) -> bool:
        """Returns whether a class or function, or an object's class, is the user's."""
        value = getattr(value, "func", getattr(value, "__func__", value))
        if isinstance(value, types.FunctionType):
            return self._is_users(value.__module__ or "", value.__code__.co_filename)
        kind = value if isinstance(value, type) else type(value)
        return self._is_users(kind.__module__, _file_of(kind))

    # Functions.

    def _look_at_function(self, name: str, function: types.FunctionType) -> None:
        module, code = function.__module__ or "", function.__code__
        shown = _qualname(function.__qualname__)
        if not self._is_users(module, code.co_filename):
            self.tell(name, f"{self._called(module)} {shown}()".strip())
            if _at_its_name(function) is not function:
                self._look_at_cells(name, function)
            return
        self.tell(name, f"{shown}()")
        if module == "__main__" or not self._has_module(module, code.co_filename):
            self._add_code(module, shown, code)
        else:
            self.module(module)
            compiled = functions_of(code.co_filename, source_of(code.co_filename))
            if len(compiled.get(code.co_qualname, ())) > 1:  # The module does not tell which it is.
                self.tell(name, f"{shown}() {digest(text_of(code))}")
        self._look_at_cells(name, function)
        self._look_at_defaults(name, function)
        self._look_at_globals(function)

    def _look_at_cells(self, name: str, function: types.FunctionType) -> None:
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
        for variable, cell in cells:
            try:
                content = cell.cell_contents
            except ValueError:  # It is not set (yet).
                continue
            if content is not function and variable != "__class__":
                self._look_at_used(f"{name}, {variable}", content, function, variable)

    def _look_at_used(
        self, name: str, value: Any, function: types.FunctionType, variable: str
    ) -> None:
        """Inspects a variable of a function; for settings, only those that the function reads."""
        is_settings = type(value).__name__ in _SETTINGS
        if not is_settings and not isinstance(value, Mapping):
            self.look(name, value)
            return
        keys = keys_read(function.__code__, variable)
        if keys is None and is_settings and hasattr(value, "flag_values_dict"):
            return  # absl's flags are those of all modules.
        if keys is None:
            self.look(name, value)
        for key in sorted(keys or ()):
            missing = value.get(key) if isinstance(value, Mapping) else getattr(value, key, None)
            self.look(f"{name}[{key!r}]", missing)

    def _look_at_defaults(self, name: str, function: types.FunctionType) -> None:
        code = function.__code__
        defaults = function.__defaults__ or ()
        names = code.co_varnames[: code.co_argcount][code.co_argcount - len(defaults) :]
        for variable, value in zip(names, defaults, strict=True):
            self.look(f"{name}, {variable}", value)
        for variable, value in sorted((function.__kwdefaults__ or {}).items()):
            self.look(f"{name}, {variable}", value)

    def _look_at_globals(self, function: types.FunctionType) -> None:
        module = function.__module__ or ""
        names = names_of(function.__code__)
        self._look_at_imports(function)
        for variable in sorted(names & function.__globals__.keys()):
            value = function.__globals__[variable]
            if isinstance(value, types.ModuleType):
                self._look_at_module(value, names)
            elif self._counts(module, variable, value):
                self._look_at_used(f"{label(module)}, {variable}", value, function, variable)

    def _look_at_imports(self, function: types.FunctionType) -> None:
        """Inspects the modules that a function of a main program imports inside its body."""
        if function.__module__ != "__main__":
            return  # The imports of a module are followed as a whole.
        node = node_of(function.__code__)
        for name in imports_of(node, "__main__") if node else ():
            self.module(name)

    def _look_at_module(self, module: types.ModuleType, names: Any) -> None:
        if not self._is_users(module.__name__, getattr(module, "__file__", None)):
            return
        self.module(module.__name__)
        for variable in sorted(names & vars(module).keys()):
            value = vars(module)[variable]
            if not isinstance(value, types.ModuleType) and self._counts(
                module.__name__, variable, value
            ):
                self.look(f"{label(module.__name__)}, {variable}", value)

    def _counts(self, module: str, variable: str, value: Any) -> bool:
        """Returns whether a value adds information to the syntax tree of its module.

        Args:
          module: The module.
          variable: A global of it, or an attribute of a class: `Net.width`.
          value: The value.
        """
        if module == "__main__":
            return True
        if isinstance(value, types.FunctionType | type | functools.partial):
            return True
        if isinstance(value, staticmethod | classmethod | property):
            return True
        if isinstance(value, list | dict | set):
            # What begins empty is filled while the program runs: a cache, or a list of names.
            return not _begins_empty(module, variable)
        if isinstance(value, _SCALARS | tuple | frozenset | np.ndarray | enum.Enum):
            return True
        return self.is_users(type(value)) or type(value).__name__ in _SETTINGS

    # Classes and their instances.

    def _look_at_class(self, name: str, kind: type) -> None:
        shown = _qualname(kind.__qualname__)
        if not self._is_users(kind.__module__, _file_of(kind)):
            self.tell(name, f"{self._called(kind.__module__)} {shown}")
            return
        self.tell(name, f"class {shown}")
        module = kind.__module__
        in_file = module != "__main__" and self._has_module(module, _file_of(kind))
        if in_file:
            self.module(module)
        attributes = {} if issubclass(kind, enum.Enum) else vars(kind)
        for key, value in sorted(attributes.items()):
            made = getattr(getattr(value, "__code__", None), "co_filename", "")
            if key in _OF_CLASSES or key.startswith("_abc_") or made == "<string>":
                continue  # `<string>`: what dataclasses write.
            if isinstance(value, types.GetSetDescriptorType | types.MemberDescriptorType):
                continue
            if not in_file or self._counts(module, f"{shown}.{key}", value):
                self.look(f"{label(module)}, {shown}.{key}", value)
        for base in kind.__bases__:
            if base is not object:
                self.look(f"{name}, base {base.__name__}", base)

    def _look_at_instance(self, name: str, value: Any) -> None:
        kind = type(value)
        shown = _qualname(kind.__qualname__)
        users = self._is_users(kind.__module__, _file_of(kind))
        if users:
            self.tell(name, f"{shown} object")
            self.look(f"{name}, its class", kind)
        else:
            self.tell(name, f"{self._called(kind.__module__)} {shown} object")
            if isinstance(value, np.random.Generator | np.random.RandomState):
                return
            if kind.__module__.split(".")[0] in _OF_THE_PROCESS:
                return
        state = state_of(value)
        if not state and not users:
            text = repr(value)
            if kind.__repr__ is not object.__repr__ and " at 0x" not in text:
                self.tell(name, f"{shown} {text if len(text) <= LONG else digest(text)}")
            return
        for key in sorted(state):
            inner = state[key]
            if key.startswith("_") and not users:
                continue
            if users or isinstance(
                inner, _SCALARS | list | tuple | dict | set | np.ndarray | types.FunctionType
            ):
                self.look(f"{name}, {key}", inner)

    # Modules.

    def module(self, name: str) -> None:
        """Adds a module's syntax trees if it is the user's, and those of all that it imports."""
        waiting = [name]
        while waiting:
            name = waiting.pop()
            if name in self._modules:
                continue
            self._modules.add(name)
            path = path_of(name)
            if name == "__main__" or path is None or not is_own(name, path, self.packages):
                continue
            source = source_of(path)
            tree = tree_of(path, source)
            if tree is None:
                continue
            self.found.code[label(name)] = parts(tree) | of_other_code(name, path, source)
            waiting += imports_of(tree, name)

    def _has_module(self, module: str, filename: str | None) -> bool:
        """Returns whether a file belongs to a module whose syntax tree is available."""
        path = path_of(module)
        return path is not None and os.path.realpath(path) == os.path.realpath(filename or "")

    def _is_users(self, module: str, path: str | None) -> bool:
        if module == "__main__":
            return True
        if path and path.startswith("<"):  # Of a console, or made by `exec`.
            path = path_of(module) if module in sys.modules else None
            return path is None or is_own(module, path, self.packages)
        if path is None or not path.endswith(".py"):
            return "ipykernel" in (path or "") or "ipython" in (path or "")
        return is_own(module, path, self.packages)

    def _called(self, module: str) -> str:
        """Returns a module's package name, since the module itself may differ between versions."""
        if is_suites(module, path_of(module)):
            return "the suite's"
        top = module.split(".")[0]
        return _SAME.get(top, top)

    def _add_code(self, module: str, shown: str, code: Any) -> None:
        text, name = text_of(code), f"{shown}()"
        of_module = self.found.code.setdefault(label(module), {})
        known = of_module.get(name)
        # Functions of one name, such as two lambdas.
        of_module[name] = digest(text) if known in (None, digest(text)) else digest(known + text)


def describe_array(array: np.ndarray) -> str:
    """Returns dtype, shape and a digest of an array's content."""
    array = np.asarray(array)
    shape = ", ".join(map(str, array.shape))
    content = repr(array.tolist()) if array.dtype.hasobject else np.ascontiguousarray(array).data
    data = content.encode() if isinstance(content, str) else content
    return f"{array.dtype}[{shape}] {digest(bytes(data))}"


def state_of(value: Any) -> dict[str, Any]:
    """Returns an instance's attributes, without the results of cached properties."""
    kind, state = type(value), {}
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if slot not in ("__dict__", "__weakref__") and hasattr(value, slot):
                state[slot] = getattr(value, slot)
    state |= getattr(value, "__dict__", {})
    return {
        key: inner
        for key, inner in state.items()
        if not isinstance(getattr(kind, key, None), functools.cached_property)
    }


def _key(value: Any) -> str:
    """Returns a key of a dictionary, or a member of a set, as text."""
    if isinstance(value, _SCALARS):
        return scalar(value, whole=True)
    if isinstance(value, tuple):
        return f"({', '.join(map(_key, value))})"
    if isinstance(value, frozenset):
        return f"set{sorted(map(_key, value))}"
    return f"{getattr(value, '__qualname__', type(value).__qualname__)}"


def _qualname(name: str) -> str:
    return name.replace(".<locals>", "").replace("<lambda>", "lambda")


def _file_of(kind: type) -> str | None:
    module = sys.modules.get(kind.__module__)
    return getattr(module, "__file__", None)


def _at_its_name(function: Any) -> Any:
    """Returns the object found at a function's own qualified name."""
    found = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found


def _begins_empty(module: str, variable: str) -> bool:
    path = path_of(module)
    return path is not None and variable in empty_names(path, source_of(path))


def loaded_suite(roots: Iterable[str]) -> dict[str, str]:
    """Returns digests of the suite's files that modules reach through their imports.

    Args:
      roots: Names of modules of the suite.

    Returns:
      Path in the suite's folder → digest of its syntax tree.
    """
    found, waiting, seen = {}, list(roots), set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        path = path_of(name)
        if path is None or not is_suites(name, path):
            continue
        digest_, imported = _of_file(path, os.stat(path).st_mtime_ns, name)
        found[pathlib.Path(os.path.realpath(path)).relative_to(SUITE).as_posix()] = digest_
        waiting += imported
    return dict(sorted(found.items()))


def of_modules(names: Iterable[str]) -> dict[str, str]:
    """Returns a digest of each of the user's modules that the given modules reach.

    Args:
      names: Names of modules.

    Returns:
      `the code of my_task.py` → digest.
    """
    describer = Describer()
    for name in names:
        describer.module(name)
    code = describer.found.code
    return {f"the code of {m}": digest(json.dumps(sorted(p.items()))) for m, p in code.items()}


@functools.lru_cache(maxsize=1024)
def _of_file(path: str, changed: int, name: str) -> tuple[str, tuple[str, ...]]:
    del changed
    tree = ast.parse(pathlib.Path(path).read_text(encoding="utf-8"))
    texts = texts_of(tree)
    return digest(json.dumps(sorted(texts.items()))), tuple(imports_of(tree, name))
