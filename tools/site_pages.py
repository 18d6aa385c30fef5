"""MkDocs hook: the pages that lie outside docs/, and those made from docstrings and registries.

`mkdocs build` makes the site; the README is its home page, papers/ comes in as it is, and the
tables of methods are made from what the methods declare.
"""

import pathlib
import re
import sys

import mkdocs.structure.files
import tabulate

_REPO = pathlib.Path(__file__).resolve().parent.parent
# What a script calls, under the names by which it does.
_CALLS = {
    "tasks.load": "tasks.load",
    "tff_algos.build": "tff_algos.process.build",
    "tff_algos.initial_client_state": "tff_algos.process.initial_client_state",
    "tff_algos.from_keras": "tff_algos.keras_bridge.from_keras",
    "simulation.run": "simulation.in_python.run",
}
# Modules, by section of the page; what `_CALLS` has is not told again.
_PYTHON = {
    "Methods": ["tff_algos.registry", "tff_algos.model", "tff_algos.client_data"],
    "Tasks": ["tasks.task", "tasks.registry", "tasks.partitions"],
    "Running": [
        "simulation.in_python.Result",
        "simulation.runtimes",
        "simulation.measures.fairness",
        "reproduction.run_folders",
    ],
    "Figures": [
        "tff_suite.figures",
        "reproduction.plots",
        "reproduction.quantities",
        "reproduction.adjustments",
    ],
    "Sweeps": ["reproduction.compare", "reproduction.items", "reproduction.sweep"],
}


def on_files(files, config):
    """Adds the pages to those of docs/."""
    for path, text in pages().items():
        files.append(mkdocs.structure.files.File.generated(config, path, content=text))
    notebook = _REPO / "examples" / "compare_methods.ipynb"
    for path in [notebook, *sorted((_REPO / "papers").rglob("*"))]:
        if path.suffix in (".png", ".csv", ".toml", ".ipynb"):
            place = path.relative_to(_REPO).as_posix()
            files.append(
                mkdocs.structure.files.File.generated(config, place, abs_src_path=str(path))
            )
    return files


def pages() -> dict[str, str]:
    """Returns path within the site → Markdown."""
    made = {}
    for path in [*sorted((_REPO / "papers").rglob("*.md")), _REPO / "examples/README.md"]:
        made[path.relative_to(_REPO).as_posix()] = _within_the_site(path.read_text())
    for name, page in (
        ("README", "index"),
        ("CONTRIBUTING", "contributing"),
        ("CHANGELOG", "changelog"),
    ):
        made[f"{page}.md"] = _within_the_site((_REPO / f"{name}.md").read_text())
    made["reference/methods.md"] = _methods()
    calls = [
        f"::: {of}\n    options:\n      heading: {name}\n      toc_label: {name}"
        for name, of in _CALLS.items()
    ]
    modules = [
        f"## {title}\n\n" + "\n\n".join(f"::: {name}" for name in names)
        for title, names in _PYTHON.items()
    ]
    made["reference/python.md"] = "\n\n".join(
        ["# Python", "## What a script calls", *calls, *modules]
    )
    return made


def _within_the_site(text):
    """Turns links into docs/, whose pages are at the site's top, and to methods into the site's."""
    text = re.sub(r"\]\(tff_algos/methods/\w+\.py\)", "](reference/methods.md)", text)
    return re.sub(r"\]\(((?:\.\./)*)docs/", r"](\1", text)


def _methods():
    # MkDocs takes from the search path what was put there while it imported this file.
    if str(_REPO) not in sys.path:
        sys.path.insert(0, str(_REPO))
    import tff_algos

    parts = ["# Methods"]
    for name in tff_algos.names():
        spec = tff_algos.get(name)
        rows = []
        for h in spec.hparams:
            default = h.describe_default()
            rows.append([f"`--{h.flag_name(name)}`", h.help, default, h.source])
        parts += [f"## `{name}`", spec.summary, f"*{spec.paper}*"]
        if rows:
            parts.append(tabulate.tabulate(rows, ["flag", "", "default", "from"], "github"))
        if isinstance(spec.builder, str):
            # The page of the file: the paper's algorithm, symbols, deviations.
            parts.append(f"::: {spec.builder.split(':')[0]}\n    options:\n      members: []")
    return "\n\n".join(parts)
