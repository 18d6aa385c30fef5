"""The pages of papers/: every paper's README and the scoreboard, from the data beside them.

What is between `<!-- begin NAME -->` and `<!-- end NAME -->` is made from the items, published.csv
and the results recorded in `papers/<paper>/<item>/<setup>/`; the rest is written by hand and stays.
"""

import csv
import pathlib
import re
import shutil
from collections import Counter
from collections.abc import Sequence

import tabulate

from reproduction import results
from reproduction.items import PAPERS, Item, Setup, all_items

STATUSES = (
    "reproduced",
    "not reproduced",
    "partial",
    "stand-in",
    "can't be run here",
    "not yet run",
)


def recorded_folder(setup: Setup) -> pathlib.Path:
    """Returns the folder in papers/ that holds a set-up's recorded results."""
    return PAPERS / setup.paper / setup.item / setup.name


def record(setup: Setup, folder: pathlib.Path) -> None:
    """Copies a set-up's tables and figures into papers/, in place of what was recorded before.

    Args:
      setup: The set-up.
      folder: Where `reproduce.py` wrote them.
    """
    target = recorded_folder(setup)
    target.mkdir(parents=True, exist_ok=True)
    for old in target.iterdir():
        old.unlink()
    for path in sorted(folder.iterdir()):
        if path.name in ("results.csv", "runs.csv") or path.suffix == ".png":
            shutil.copy(path, target / path.name)


def recorded(setup: Setup) -> list[dict[str, str]]:
    """Reads a set-up's recorded results; empty if there are none."""
    path = recorded_folder(setup) / "results.csv"
    if not path.exists():
        return []
    with open(path, newline="") as f:
        return list(csv.DictReader(f))


def agrees(ours: dict[str, str], theirs: dict[str, str]) -> bool:
    """Returns whether a number is the published one.

    They agree if they differ by at most two standard deviations of their difference (both spreads
    together), or by at most 1 % of the published number.
    """
    value, published = float(ours["value"]), float(theirs["value"])
    spreads = [float(r["spread"] or 0) for r in (ours, theirs)]
    margin = 2 * (spreads[0] ** 2 + spreads[1] ** 2) ** 0.5
    return abs(value - published) <= max(margin, 0.01 * abs(published))


def cell_statuses(setup: Setup) -> dict[tuple[str, str], str]:
    """Returns the status of each published cell of a set-up: (row, column) → one of `STATUSES`.

    Where several of our rows stand for one published row (two forms of a method), the best counts.
    """
    ours = {(r["row"], r["column"]): r for r in recorded(setup)}
    statuses = {}
    for key, theirs in results.published(setup).items():
        rows = [r for r in setup.rows if setup.published_rows.get(r, r) == key[0]]
        found = [ours[r, key[1]] for r in rows if (r, key[1]) in ours]
        found = [r for r in found if r["value"] not in ("", None)]
        if not found:
            statuses[key] = "can't be run here" if setup.not_here else "not yet run"
        elif setup.stand_in:
            statuses[key] = "stand-in"
        elif not any(_is_whole(setup, r) for r in found):
            statuses[key] = "partial"
        else:
            whole = [r for r in found if _is_whole(setup, r)]
            match = any(agrees(r, theirs) for r in whole)
            statuses[key] = "reproduced" if match else "not reproduced"
    return statuses


def _item_statuses(item) -> dict[tuple[str, str, str], str]:
    """Returns each published cell's status; of set-ups that share a cell, the better counts."""
    statuses = {}
    for setup in item.setups.values():
        for cell, status in cell_statuses(setup).items():
            key = (setup.published, *cell)
            best = min(status, statuses.get(key, status), key=STATUSES.index)
            statuses[key] = best
    return statuses


def _is_whole(setup, record) -> bool:
    """Returns whether a recorded row has all rounds and seeds of the protocol."""
    protocol = int(record.get("protocol_rounds") or setup.rounds)
    return int(record["rounds"]) >= protocol and len(record["seeds"].split()) >= len(setup.seeds)


def _table(lines, headers) -> str:
    """Returns a Markdown table without the padding that makes wide cells unreadable."""
    text = tabulate.tabulate(lines, headers, tablefmt="github", disable_numparse=True)
    return re.sub(r" {2,}", " ", re.sub(r"-{3,}", "---", text))


def _cell(ours, theirs, digits) -> str:
    text = results.format_cell(ours["value"], ours["spread"], digits) or ours["status"]
    if theirs is None or ours["value"] in ("", None):
        return text
    difference = float(ours["value"]) - float(theirs["value"])
    marked = f"{difference:+.{digits}f}"
    if not agrees(ours, theirs):
        marked = f"**{marked}**"
    paper = results.format_cell(theirs["value"], theirs["spread"], digits)
    return f"{text}<br>paper {paper}<br>{marked}"


def side_by_side(setup: Setup, rows: Sequence[dict[str, str]]) -> str:
    """Returns a set-up's recorded results as a Markdown table, the paper's number in each cell."""
    theirs = results.published(setup)
    columns = {c["name"]: c.get("digits", 2) for c in setup.columns}
    names = [n for n in dict.fromkeys(r["column"] for r in rows) if n != "seconds_per_round"]
    chosen = list(dict.fromkeys(flag for grid in setup.grid.values() for flag in grid))
    lines = []
    for row in dict.fromkeys(r["row"] for r in rows):
        ours = {r["column"]: r for r in rows if r["row"] == row}
        first = next(iter(ours.values()))
        their_row = setup.published_rows.get(row, row)
        seconds = ours.get("seconds_per_round", {}).get("value")
        lines.append(
            [row, *(first.get(k, "") for k in chosen), first["rounds"], first["seeds"]]
            + [
                _cell(ours[n], theirs.get((their_row, n)), columns.get(n, 2)) if n in ours else ""
                for n in names
            ]
            + [f"{float(seconds):.3g}" if seconds else ""]
        )
    headers = ["row", *chosen, "rounds", "seeds", *names, "s a round"]
    return _table(lines, headers)


def _section(item: Item) -> str:
    """Returns an item's section: its recorded set-ups, each with command, table, figures."""
    parts = [f"### {item.title}"]
    for setup in item.setups.values():
        rows = recorded(setup)
        figures = sorted(recorded_folder(setup).glob("*.png"))
        if not rows and not figures:
            continue
        parts.append(f"**{setup.title}**")
        parts.append(
            f"    .venv/bin/python reproduce.py --paper={item.paper} --item={item.name} "
            f"--setup={setup.name} --data_dir=DIR"
        )
        if rows:
            parts.append(side_by_side(setup, rows))
        typed = [{**r, "rounds": int(r["rounds"]) if r["rounds"] else ""} for r in rows]
        for r in typed:
            r["protocol_rounds"] = int(r.get("protocol_rounds") or setup.rounds)
        parts.append("\n".join(f"- {line}" for line in results.caveats(typed, setup)))
        if rows:
            parts.append(_how(setup, rows))
        path = f"{item.name}/{setup.name}"
        parts += [f"![{setup.title}]({path}/{figure.name})" for figure in figures]
    return "\n\n".join(part for part in parts if part)


def _how(setup, rows) -> str:
    path = f"{setup.item}/{setup.name}"
    told = [f"[results.csv]({path}/results.csv), [runs.csv]({path}/runs.csv)."]
    for name, label in (("data", "Data"), ("device", "Machine"), ("commit", "Commit")):
        # A row whose runs differ in it holds all of them.
        values = dict.fromkeys(v for r in rows for v in (r.get(name) or "").split("; ") if v)
        if values:
            told.append(f"{label}: {'; '.join(values)}.")
    return " ".join(told)


def _overview(items: Sequence[Item]) -> str:
    lines = []
    for item in items:
        states = []
        for setup in item.setups.values():
            if recorded(setup) or any(recorded_folder(setup).glob("*.png")):
                whole = all(_is_whole(setup, r) for r in recorded(setup) if r["rounds"])
                state = "run" if whole else "partial"
                if setup.stand_in:
                    state += ", stand-in"
            elif setup.not_here:
                state = f"can't be run here: {setup.not_here}"
            else:
                state = "not yet run"
            states.append((setup.name, state))
        told = dict.fromkeys(state for _, state in states)
        text = "; ".join(
            state if len(told) == 1 else f"{', '.join(n for n, s in states if s == state)}: {state}"
            for state in told
        )
        lines.append([f"`{item.name}`", item.title, text])
    return _table(lines, ["item", "", ""])


def _replace(text: str, name: str, content: str) -> str:
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    block = f"{begin}\n{content}\n{end}"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.S)
    if pattern.search(text):
        return pattern.sub(lambda _: block, text)
    return f"{text.rstrip()}\n\n{block}\n"


def paper_page(paper: str, text: str) -> str:
    """Returns a paper's README with what is made from data brought up to date.

    Args:
      paper: Folder under papers/.
      text: The README as it is.
    """
    items = all_items(paper)
    text = _replace(text, "overview", _overview(items))
    for item in items:
        section = _section(item)
        if "\n" in section:
            text = _replace(text, item.name, section)
    return text


def scoreboard_page(text: str) -> str:
    """Returns papers/README.md with its scoreboard brought up to date.

    Args:
      text: The page as it is.
    """
    totals, lines, by_item = Counter(), [], []
    for paper in sorted({item.paper for item in all_items()}):
        counts = Counter()
        for item in all_items(paper):
            of_item = Counter(_item_statuses(item).values())
            if of_item:
                by_item.append([paper, f"`{item.name}`", *(of_item[s] or "" for s in STATUSES)])
            counts += of_item
        name = (PAPERS / paper / "README.md").read_text().splitlines()[0].removeprefix("# ")
        lines.append([f"[{name}]({paper}/README.md)", *(counts[s] for s in STATUSES)])
        lines[-1].append(sum(counts.values()))
        totals += counts
    lines.append(["all", *(totals[s] for s in STATUSES), sum(totals.values())])
    table = _table(lines, ["paper", *STATUSES, "cells"])
    items = _table(by_item, ["paper", "item", *STATUSES])
    return _replace(text, "scoreboard", f"{table}\n\n### By table\n\n{items}")


def pages() -> dict[pathlib.Path, str]:
    """Returns every page of papers/ as its data make it: path → text."""
    texts = {}
    for paper in sorted({item.paper for item in all_items()}):
        path = PAPERS / paper / "README.md"
        texts[path] = paper_page(paper, path.read_text())
    path = PAPERS / "README.md"
    texts[path] = scoreboard_page(path.read_text())
    return texts


def write() -> list[pathlib.Path]:
    """Brings all pages up to date; returns those that changed."""
    changed = []
    for path, text in pages().items():
        if path.read_text() != text:
            path.write_text(text)
            changed.append(path)
    return changed
