"""MkDocs hook: pages from outside docs/, and those made from docstrings and registries.

`mkdocs build` makes the site. The README is its home page, and papers/ and league/ are included
unchanged. Each method and task has a page made from its file and its recorded results. The site
works offline: diagrams, formulas, fonts, code colours and the search index are made here or
shipped.
"""

import pathlib
import re
import sys

import mkdocs.structure.files
import PIL.Image
import pygments.formatters

_REPO = pathlib.Path(__file__).resolve().parent.parent
if str(_REPO) not in sys.path:
    sys.path.insert(0, str(_REPO))

from tools import diagram

_LINKED = ("LICENSE", "CITATION.cff")
_SHOWN = (".png", ".csv", ".toml", ".ipynb")
# Folders of recorded results, which have pages of their own.
_RESULTS = ("papers", "league")
_SITE = pathlib.Path("/site")  # Stands for the site's top; nothing is written there.
_DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.S | re.M)
_LINK_TO_METHODS = re.compile(r"\[([^\]]*)\]\(tff_algos/methods/\w+\.py\)")
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
    "Methods": [
        "tff_algos.method_spec",
        "tff_algos.registry",
        "tff_algos.model",
        "tff_algos.client_data",
    ],
    "Tasks": ["tasks.task", "tasks.registry", "tasks.partitions"],
    "Running": [
        "simulation.in_python.Result",
        "simulation.runtimes",
        "simulation.measures.fairness",
        "reproduction.run_folders",
    ],
    "Figures": [
        "tff_suite.figures",
        "reproduction.kinds.rounds",
        "reproduction.kinds.summary",
        "reproduction.kinds.settings",
        "reproduction.kinds.clients",
        "reproduction.quantities",
        "reproduction.adjustments",
    ],
    "Sweeps": [
        "reproduction.compare",
        "reproduction.setups",
        "reproduction.item_files",
        "reproduction.planned_runs",
        "reproduction.sweep",
    ],
}


def on_files(files, config):
    """Adds the pages and files from outside docs/."""
    made = mkdocs.structure.files.File.generated
    for path, text in pages().items():
        files.append(made(config, path, content=text))
    colours = pygments.formatters.HtmlFormatter().get_style_defs(".highlight")
    files.append(made(config, "code.css", content=colours))
    notebook = _REPO / "examples" / "compare_methods.ipynb"
    own = (p for folder in _RESULTS for p in sorted((_REPO / folder).rglob("*")))
    shown = [p for p in own if p.suffix in _SHOWN]
    for path in [notebook, *shown, *(_REPO / name for name in _LINKED)]:
        place = path.relative_to(_REPO).as_posix()
        files.append(made(config, place, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown, page, **_):
    """Draws diagrams, and converts links that lead out of docs/ to links within the site."""
    text = _DIAGRAM.sub(
        lambda found: f'<div class="diagram">{diagram.svg(found[1])}</div>', markdown
    )
    place = page.file.src_uri
    if "/" not in place:
        text = _within_the_site(text.replace("](../", "]("))
    if place == "methods.md":
        text = _LINK_TO_METHODS.sub(
            lambda found: re.sub(r"`(\w+)`", r"[`\1`](methods/\1.md)", found[1]), text
        )
    if place == "tasks.md":
        begin = text.index("| task | data | state |")
        end = text.index("\n\n", begin)
        table = re.sub(
            r"^\| [^|]+\|",
            lambda found: re.sub(r"`(\w+)`", r"[`\1`](tasks/\1.md)", found[0]),
            text[begin:end],
            flags=re.M,
        )
        text = text[:begin] + table + text[end:]
    return text


def on_page_content(html, page, files, **_):
    """Sets the size of images, and makes tables scroll inside themselves."""
    html = re.sub(r"<table.*?</table>", r'<div class="scroll">\g<0></div>', html, flags=re.S)
    return re.sub(r'<img ([^>]*?)src="([^"]+)"', lambda m: _sized(m, page, files), html)


def _sized(found, page, files):
    # Links are relative to the page's address by now.
    folder = pathlib.PurePosixPath("/" + page.url)
    place = (_SITE / folder.relative_to("/") / found[2]).resolve().relative_to(_SITE)
    file = next((f for f in files if f.dest_uri == place.as_posix()), None)
    if file is None:
        return found[0]
    with PIL.Image.open(file.abs_src_path) as image:
        width, height = image.size
    return f'<img loading="lazy" width="{width}" height="{height}" {found[1]}src="{found[2]}"'


def pages() -> dict[str, str]:
    """Returns path within the site → Markdown."""
    made = {}
    results = (p for folder in _RESULTS for p in sorted((_REPO / folder).rglob("*.md")))
    for path in [*results, _REPO / "examples/README.md"]:
        made[path.relative_to(_REPO).as_posix()] = _within_the_site(path.read_text())
    for name, page in (
        ("README", "index"),
        ("CONTRIBUTING", "contributing"),
        ("CHANGELOG", "changelog"),
    ):
        made[f"{page}.md"] = _within_the_site((_REPO / f"{name}.md").read_text())
    from tools import method_and_task_pages as own

    made |= {f"methods/{name}.md": own.method_page(name) for name in own.own_methods()}
    made |= {f"tasks/{name}.md": own.task_page(name) for name in own.own_tasks()}
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
    """Converts links into docs/ to links within the site, where these pages are at the top."""
    text = re.sub(r"\]\(((?:\.\./)*)docs/", r"](\1", text)
    for name in ("CONTRIBUTING", "CHANGELOG"):
        text = text.replace(f"]({name}.md", f"]({name.lower()}.md")
    return text
