"""The table of symbols in a method's docstring says what the method's settings are.

A row is the paper's symbol, the setting, its default, and where that is from, each in its column;
lines that begin in a later column continue the row above. A setting may be followed by the
methods of the file that have it, as `beta2 (adam)`. Where its default depends on another setting or
on the method, the row has each default with its cases, and one without cases for all others:
`0 (paper), 6 (released)`. What follows a colon explains a default.
"""

import importlib
import itertools
import pkgutil
import re

import pytest

from tff_algos import methods, registry
from tff_suite.hparams import NOT_USED, By

FILES = [found.name for found in pkgutil.iter_modules(methods.__path__)]
HEADER = re.compile(r"^ +(symbol +)(argument +)(default +)(from\b.*)$")
TRAINING = {h.name: h.default for h in registry.TRAINING_HPARAMS}


def rows_of(docstring):
    """Returns the cells of each row of the table, by setting; they must begin in their columns."""
    lines = iter(docstring.splitlines())
    header = next(filter(None, map(HEADER.match, lines)))
    starts = [header.start(i) for i in range(1, 5)]
    rows = []
    for line in itertools.takewhile(str.strip, lines):
        cells = [line[a:b] for a, b in zip(starts, [*starts[1:], None], strict=True)]
        for cell, after in itertools.pairwise(cells):
            assert not after.strip() or cell.endswith(" "), f"a cell is too long: {line}"
        assert not any(cell.strip() and cell.startswith(" ") for cell in cells), line
        if cells[0].strip():
            rows.append([cell.strip() for cell in cells])
        else:
            rows[-1] = [f"{a} {b.strip()}".strip() for a, b in zip(rows[-1], cells, strict=True)]
    settings = [argument.split()[0] for _, argument, _, _ in rows]
    assert len(set(settings)) == len(settings), f"two rows for one of {settings}"
    return dict(zip(settings, rows, strict=True))


def cases_of(cell):
    """Returns what a cell has by case; what it has for all other cases by `None`."""
    return {
        case: text.split(":")[0].strip()
        for text, cases in re.findall(r"([^,(]+)(?:\(([^)]*)\))?,?", cell)
        for case in (cases.split(", ") if cases else [None])
    }


def shows(text, default):
    """Whether a text is how a default is written; what is not set may have any words."""
    if text is None or isinstance(default, str):
        return text == default
    if isinstance(default, bool):
        return text == str(default).lower()
    try:
        return float(text) == default
    except ValueError:
        return default is None


def agrees(cell, default, method, methods_of_file):
    """Whether the cell of a default says what the setting of a method has."""
    shown = cases_of(cell)
    if not isinstance(default, By):
        of_method = shown.get(method, shown.get(None))
        return shows(of_method, default) and set(shown) <= {None, *methods_of_file}
    used = {str(case): value for case, value in default.cases.items()} | {None: default.otherwise}
    used = {case: value for case, value in used.items() if value is not NOT_USED}
    return set(shown) == set(used) and all(shows(shown[case], used[case]) for case in used)


def defaults_of(spec):
    """Returns the defaults of the settings that must have a row, and of those that may."""
    needed = {h.name: h.default for h in spec.hparams}
    needed["client_learning_rate"] = spec.client_learning_rate
    if spec.has_server_step:
        needed["server_learning_rate"] = spec.server_learning_rate
    if spec.client_weighting is not None:
        needed["client_weighting"] = spec.client_weighting
    optimizers = spec.client_optimizers or tuple(registry.CLIENT_OPTIMIZERS)
    # Of the optimizers that have a momentum, whichever is the method's default.
    (momentum,) = set(TRAINING["client_momentum"].values())
    possible = {"client_optimizer": optimizers[0], "client_momentum": momentum}
    possible |= {"num_clients": None} if spec.needs_num_clients else {}
    possible |= {"total_rounds": None} if spec.staged else {}
    return needed, possible


@pytest.mark.parametrize("file", FILES)
def test_the_table_of_symbols_is_that_of_the_settings(file):
    module = importlib.import_module(f"{methods.__name__}.{file}")
    specs = getattr(module, "SPECS", None) or (module.SPEC,)
    specs = {spec.name.removeprefix(f"{file}_"): spec for spec in specs}
    rows = rows_of(module.__doc__)
    wrong, known = [], set()
    for method, spec in specs.items():
        needed, possible = defaults_of(spec)
        known |= {*needed, *possible}
        wrong += [f"{name} has no row" for name in needed if name not in rows]
        for name, default in (needed | possible).items():
            if name in rows and not agrees(rows[name][2], default, method, specs):
                wrong.append(f"the default of {name} is {default!r}, not {rows[name][2]!r}")
    wrong += [f"{name} is no setting of the method" for name in rows if name not in known]
    for name, (_, argument, _, _) in rows.items():
        having = {method for method, spec in specs.items() if name in defaults_of(spec)[0]}
        if "(" in argument and set(cases_of(argument)) != having:
            wrong.append(f"{name} is a setting of {', '.join(sorted(having))}, not {argument!r}")
    assert not wrong, "; ".join(dict.fromkeys(wrong))
