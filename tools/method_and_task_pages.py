"""The site's pages of methods and tasks, from their files, settings and recorded results."""

import ast
import functools
import html
import importlib.util
import pathlib
import re
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import tasks
import tff_algos
from reproduction import items, results, score
from tff_suite import parser, tables
from tff_suite.hparams import HparamError
from tools import formulas

_REPO = pathlib.Path(__file__).resolve().parent.parent
_ARXIV = re.compile(r"arXiv (\d{4}\.\d{4,5})")
_BY_METHOD, _BY_TASK = "algorithm", "task"


class Use(NamedTuple):
    """A row of a paper's table or figure.

    Attributes:
      item: Its table or figure.
      setup: Its set-up.
      row: The row's name.
      chosen: The `algorithm` and `task` in the row's flag file.
    """

    item: items.Item
    setup: items.Setup
    row: str
    chosen: dict[str, str]


@functools.cache
def _uses() -> tuple[Use, ...]:
    found = []
    for item in items.all_items():
        for setup in item.setups.values():
            for name, row in setup.rows.items():
                on_top = {k: str(v) for k, v in row.on_top.items() if k in (_BY_METHOD, _BY_TASK)}
                found.append(Use(item, setup, name, {**_chosen(row.flagfile), **on_top}))
    return tuple(found)


@functools.cache
def _chosen(flagfile: str) -> dict[str, str]:
    try:
        flags = parser.expand_flagfiles([f"--flagfile={_REPO / flagfile}"])
    except HparamError:
        return {}
    pairs = (flag.removeprefix("--").partition("=") for flag in flags)
    return {name: value for name, _, value in pairs if name in (_BY_METHOD, _BY_TASK)}


def _docstring(spec) -> str:
    """Returns the docstring of the file that declares a method or a task."""
    builder = getattr(spec, "builder", None) or spec.loader
    module = builder.split(":")[0] if isinstance(builder, str) else builder.__module__
    source = pathlib.Path(importlib.util.find_spec(module).origin).read_text()
    return ast.get_docstring(ast.parse(source)) or ""


def _table(rows, headers) -> str:
    return tables.markdown([[str(cell) for cell in row] for row in rows], headers)


def _settings(spec, symbols) -> str:
    rows = []
    for h in spec.hparams:
        symbol, _ = symbols.get(h.name, ("-", ""))
        rows.append(
            [
                f"`--{h.flag_name(spec.name)}`",
                "" if symbol == "-" else formulas.line_html(symbol),
                h.describe_default(),
                h.describe_range(),
                h.help,
                h.source,
            ]
        )
    return _table(rows, ["flag", "symbol", "default", "range", "meaning", "source of the default"])


def _history(spec) -> str:
    lines = [f"Version {spec.version}."]
    lines += [f"- Version {i}: {line}" for i, line in enumerate(spec.history, start=2)]
    if spec.version == 1:
        lines.append("No change has altered its numbers since the first version.")
    else:
        lines.insert(1, "")
    return "\n".join(lines)


def _known_problems(spec) -> list[str]:
    """Returns the section on known problems; empty if there are none."""
    if not spec.known_problems:
        return []
    lines = "\n".join(f"- {_prose(problem)}" for problem in spec.known_problems)
    return ["## Known problems", lines]


def _used_for(spec, uses: Sequence[Use], other: str) -> list[str]:
    """Returns the section on who uses a method or task for what; empty if no use is known.

    Args:
      spec: The method or task.
      uses: The rows of the papers that choose it.
      other: The other thing that a row chooses: `algorithm` or `task`.
    """
    lines = []
    for paper in dict.fromkeys(use.setup.paper for use in uses):
        of_paper = [use for use in uses if use.setup.paper == paper]
        items_ = ", ".join(dict.fromkeys(f"`{use.item.name}`" for use in of_paper))
        others = sorted({use.chosen[other] for use in of_paper if other in use.chosen})
        beside = "; with " + ", ".join(f"`{name}`" for name in others) if others else ""
        lines.append(f"- [{_title(paper)}](../papers/{paper}/README.md): {items_}{beside}.")
    lines += [f"- {_prose(line)}" for line in spec.used_for]
    return ["## Used for", "\n".join(lines)] if lines else []


@functools.cache
def _title(paper: str) -> str:
    """Returns the name of a paper, the title of its page."""
    page = _REPO / "papers" / paper / "README.md"
    return page.read_text().splitlines()[0].removeprefix("# ")


def _deviations(lines: Sequence[str]) -> str:
    """Returns a numbered list of deviations."""
    found: list[list[str]] = []
    for line in textwrap.dedent("\n".join(lines[1:])).splitlines():
        begin = re.match(r"(?:\*|\d+\.) +", line)
        if begin:
            found.append([line[begin.end() :]])
        elif found and line.strip():
            found[-1].append(line.strip())
    return "\n".join(f"{i}. {_prose(' '.join(d))}" for i, d in enumerate(found, start=1))


def _prose(text: str) -> str:
    """Returns text of a docstring as Markdown, with special characters outside code escaped."""
    parts = re.split(r"(`[^`]*`)", text)
    for i in range(0, len(parts), 2):
        parts[i] = re.sub(r"([\\*_\[\]])", r"\\\1", parts[i]).replace("<", "&lt;")
    return "".join(parts)


def _common_settings(spec, symbols) -> str:
    def rate(value):
        return "must be set" if value is None else f"{value:g}"

    server = rate(spec.server_learning_rate) if spec.has_server_step else "1, fixed"
    optimizers = spec.client_optimizers or ("sgd",)
    others = ", ".join(optimizers[1:]) if spec.client_optimizers else "any"
    defaults = {
        "client_learning_rate": rate(spec.client_learning_rate),
        "server_learning_rate": server,
        "client_weighting": spec.client_weighting or "fixed by the method",
        "client_optimizer": optimizers[0] + (f" (also: {others})" if others else ""),
    }
    rows = []
    for name, default in defaults.items():
        symbol, source = symbols.get(name, ("-", ""))
        shown = "" if symbol == "-" else formulas.line_html(symbol)
        rows.append([f"`--{name}`", shown, default, _prose(source)])
    return _table(rows, ["common flag", "symbol", "default", "source of the default"])


def _logged(spec) -> str:
    every = "the [metrics of every run](../metrics.md)"
    if spec.measures is None:
        return f"It logs {every}, and columns that only a run shows."
    if not spec.measures:
        return f"It logs {every} and no others."
    return f"Besides {every}, it logs:\n\n" + "\n".join(f"- `train/{m}`" for m in spec.measures)


def _limits(spec) -> list[str]:
    lines = []
    if spec.staged:
        lines.append("It runs in the runtimes `tff` and `native` only.")
    if isinstance(spec.aggregated, str):
        lines.append(f"`--aggregator` is not supported: the method {spec.aggregated}.")
    else:
        lines.append(f"`--aggregator` replaces {spec.aggregated.what}.")
    if not spec.takes_server_optimizer:
        lines.append("`server_optimizer` of `tff_algos.build` is not supported.")
    if spec.needs_num_clients:
        lines.append("The number of all training clients enters its formulas.")
    if not spec.draws_clients:
        lines.append("It does not sample clients, so `--clients_per_round` is not used.")
    return lines


def _with_results(uses: Sequence[Use]) -> list[Use]:
    """Returns one use for each included set-up with recorded results."""
    found = {}
    for use in uses:
        if use.setup.counts and score.recorded(use.setup):
            found.setdefault((use.setup.paper, use.item.name, use.setup.name), use)
    return list(found.values())


def _numbers(use: Use, rows: Sequence[str]) -> list[list[str]]:
    """Returns lines of a table: row, column, ours, the paper's, the status."""
    setup = use.setup
    published, statuses = results.published(setup), score.cell_statuses(setup)
    digits = {c["name"]: c.get("digits", 2) for c in setup.columns}
    lines = []
    for ours in score.recorded(setup):
        row = setup.published_rows.get(ours["row"], ours["row"])
        theirs = published.get((row, ours["column"]))
        if ours["row"] not in rows or theirs is None or ours["value"] == "":
            continue
        places = digits.get(ours["column"], 2)
        counted = score.counted_row(setup, row) == ours["row"]
        status = statuses[row, ours["column"]] if counted else "another reading"
        lines.append(
            [
                ours["row"],
                ours["column"],
                results.format_cell(ours["value"], ours["spread"], places),
                results.format_cell(theirs["value"], theirs["spread"], places),
                status,
            ]
        )
    return lines


def _results(uses: Sequence[Use]) -> Iterator[str]:
    """Yields the paragraphs on the recorded results of some rows."""
    shown = _with_results(uses)
    if not shown:
        yield "No recorded result uses it yet."
        return
    for use in shown:
        setup = use.setup
        rows = [u.row for u in uses if u.setup is setup]
        place = f"papers/{setup.paper}/README.md"
        yield f"### {_prose(setup.heading)}"
        yield f"{use.item.name}, set-up `{setup.name}`, of [{setup.paper}](../{place})."
        lines = _numbers(use, rows)
        if lines:
            yield _table(lines, ["row", "column", "ours", "paper", "status"])
        else:
            yield "The paper prints no number for these rows."
        picture = score.recorded_folder(setup) / "curves.png"
        if picture.exists():
            yield f"![Curves of this set-up](../{picture.relative_to(_REPO).as_posix()})"
        yield from map(_prose, results.told_versions(score.recorded(setup), setup))
        rows = list(dict.fromkeys(rows))
        chosen = "" if len(rows) == len(setup.rows) else shlex.quote(f"--rows={','.join(rows)}")
        yield (
            f"    .venv/bin/python reproduce.py --paper={setup.paper} --item={use.item.name} \\\n"
            f"        --setup={setup.name} {chosen}"
        ).rstrip()


def method_page(name: str) -> str:
    """Returns a method's page as Markdown.

    Args:
      name: Name of one of the suite's methods.
    """
    spec = tff_algos.get(name)
    texts, deviations, symbols, update = [], "", {}, []
    for kind, lines in formulas.blocks(_docstring(spec)):
        if kind == "symbols":
            symbols = formulas.symbols(lines)
        elif kind == "formulas":
            update.append(formulas.lines_html(lines))
        elif kind == "deviations":
            deviations = _deviations(lines)
        else:
            texts.append(_prose(" ".join(line.strip() for line in lines)))
    number = _ARXIV.search(spec.paper)
    link = f" ([arXiv](https://arxiv.org/abs/{number[1]}))" if number else ""
    uses = [use for use in _uses() if use.chosen.get(_BY_METHOD) == name]
    module = spec.builder.split(":")[0].replace(".", "/")
    title = name if spec.display_name == name else f"{spec.display_name} (`{name}`)"
    cost = spec.cost
    return "\n\n".join(
        [
            f"# {title}",
            spec.summary,
            f"**Paper.** {_prose(spec.paper)}{link}. **Source.** `{module}.py`.",
            *texts[1:2],
            "## Update",
            *update,
            *texts[2:],
            "## Settings",
            *([_settings(spec, symbols)] if spec.hparams else ["It has no settings of this name."]),
            _common_settings(spec, symbols),
            "## What is logged",
            _logged(spec),
            "## Deviations from the paper",
            deviations or "None.",
            *_known_problems(spec),
            *_used_for(spec, uses, _BY_TASK),
            "## Cost",
            "Per client, with default settings:",
            f"- gradients in a local step: {cost.gradients}\n"
            f"- vectors of the model's size received per round: {cost.down}\n"
            f"- vectors of the model's size sent per round: {cost.up}",
            "## Limits",
            "\n".join(f"- {line}" for line in _limits(spec)),
            "## Run it",
            f"    .venv/bin/python run_experiment.py --algorithm={name} --help",
            "## Results",
            *_results(uses),
            "## Version and history",
            _history(spec),
        ]
    )


def task_page(name: str) -> str:
    """Returns a task's page as Markdown.

    Args:
      name: Name of one of the suite's tasks.
    """
    spec = tasks.get(name)
    first, *more = _docstring(spec).split("\n\n")
    uses = [use for use in _uses() if use.chosen.get(_BY_TASK) == name]
    metrics = spec.metrics
    if callable(metrics):
        metrics = spec.metrics_with({h.name: h.default for h in spec.hparams if h.default})
    data = "It reads files: see `--data_dir`." if spec.needs_data else "It needs no files."
    if spec.preparer:
        data += f" `python -m tasks.prepare --task={name}` makes them faster to load."
    methods = sorted({u.chosen[_BY_METHOD] for u in uses if _BY_METHOD in u.chosen})
    known = set(own_methods())
    links = ", ".join(f"[`{m}`](../methods/{m}.md)" if m in known else f"`{m}`" for m in methods)
    return "\n\n".join(
        [
            f"# `{name}`",
            spec.summary,
            _text(first),
            *(_text(part) for part in more),
            "## Data",
            f"{data} [Tasks](../tasks.md) has counts, models and where data are looked for.",
            *_data(spec),
            "## Metrics",
            "\n".join(f"- `{m}`" for m in metrics) if metrics else "The loaded task decides.",
            "## Settings",
            _settings(spec, {}) if spec.hparams else "It has no settings.",
            *_known_problems(spec),
            *_used_for(spec, uses, _BY_METHOD),
            "## Run it",
            f"    .venv/bin/python run_experiment.py --task={name} --algorithm=fedavg --help",
            "## Results",
            f"Methods with rows on this task: {links or 'none'}.",
            *_results(uses),
            "## Version and history",
            _history(spec),
        ]
    )


def _data(spec) -> Iterator[str]:
    """Yields the files that a task reads, as one list."""
    lines = []
    for files in (files for files in spec.data if not files.stand_in):
        with_ = "; ".join(f"`{k}={'` or `'.join(map(str, v))}`" for k, v in files.when.items())
        lines.append(f"- {files.name}{f' (with {with_})' if with_ else ''}: {files.source}.")
    if lines:
        yield "\n".join(lines)


def _text(paragraph: str) -> str:
    if paragraph.startswith(("  ", "\t")):
        return f"<pre>{html.escape(paragraph)}</pre>"
    return _prose(" ".join(paragraph.split()))


def own_methods() -> list[str]:
    """Returns the names of the methods that have a file in the suite."""
    names = tff_algos.names()
    return [n for n in names if str(tff_algos.get(n).builder).startswith("tff_algos.methods.")]


def own_tasks() -> list[str]:
    """Returns the names of the tasks that have a file in the suite."""
    return [n for n in tasks.names() if str(tasks.get(n).loader).startswith("tasks.datasets.")]
