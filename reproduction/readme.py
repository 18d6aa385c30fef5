"""The pages of papers/: every paper's README and the scoreboard, from the data beside them.

What is between `<!-- begin NAME -->` and `<!-- end NAME -->` is made from the items, published.csv
and the results recorded in `papers/<paper>/<item>/<setup>/`; the rest is written by hand and stays.
"""

import math
import pathlib
import re
import shutil
import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import tabulate

from reproduction import claims, needs, order, results, score
from reproduction.items import PAPERS, Item, ReproduceError, Setup, all_items
from reproduction.score import STATUSES, recorded, recorded_folder
from simulation.records import files


def check_loses_nothing(
    setup: Setup, rows: Mapping[str, tuple[Collection[str], int | None]]
) -> None:
    """Refuses to record less than there is: fewer rows, seeds or rounds.

    Args:
      setup: The set-up.
      rows: Row → seeds and most rounds of what is to be recorded; `None` for rounds not known yet,
        or of a run that diverged.

    Raises:
      ReproduceError: If a recorded row of the item has more.
    """
    path = recorded_folder(setup) / "results.csv"
    for row, (seeds, rounds) in _extent(path).items():
        if row not in setup.rows:
            continue
        lost = ""
        if row not in rows:
            lost = f"its row {row}"
        elif not set(seeds) <= set(rows[row][0]):
            lost = f"seeds of {row}"
        elif rounds and (rows[row][1] or rounds) < rounds:
            lost = f"rounds of {row}"
        if lost:
            raise ReproduceError(
                f"--record replaces all that is in {path.parent}, and {lost} would be lost; do "
                "without --rows, --seeds and --budget, or remove that folder first."
            )


def _extent(path) -> dict[str, tuple[list[str], int | None]]:
    """Returns row → seeds and rounds of a results.csv; nothing if there is none."""
    return {
        r["row"]: (r["seeds"].split(), int(r["rounds"]) if r["rounds"] else None)
        for r in score.lines_of(path)
    }


def record(setup: Setup, folder: pathlib.Path) -> None:
    """Copies a set-up's results, figures and figures' data into papers/, in place of older ones.

    Args:
      setup: The set-up.
      folder: Where `reproduce.py` wrote them.

    Raises:
      ReproduceError: If what is there has more rows, seeds or rounds.
    """
    check_loses_nothing(setup, _extent(folder / "results.csv"))
    target = recorded_folder(setup)
    target.mkdir(parents=True, exist_ok=True)
    for old in target.iterdir():
        if old.is_dir():
            shutil.rmtree(old)
        else:
            old.unlink()
    for path in sorted(folder.iterdir()):
        if path.suffix in (".csv", ".png"):
            shutil.copy(path, target / path.name)


def _table(lines, headers) -> str:
    """Returns a Markdown table without the padding that makes wide cells unreadable."""
    text = tabulate.tabulate(lines, headers, tablefmt="github", disable_numparse=True)
    return re.sub(r" {2,}", " ", re.sub(r"-{3,}", "---", text))


def _cell(ours, theirs, digits, is_blind=False) -> str:
    text = results.format_cell(ours["value"], ours["spread"], digits) or ours["status"]
    if theirs is None or ours["value"] in ("", None):
        return text
    difference = float(ours["value"]) - float(theirs["value"])
    marked = f"{difference:+.{digits}f}"
    if not score.agrees(ours, theirs):
        marked = f"**{marked}**"
    if is_blind:
        marked += " n.d."
    paper = results.format_cell(theirs["value"], theirs["spread"], digits)
    return f"{text}<br>paper {paper}<br>{marked}"


def side_by_side(setup: Setup, rows: Sequence[dict[str, str]]) -> str:
    """Returns a set-up's recorded results as a Markdown table, the paper's number in each cell."""
    theirs = results.published(setup)
    columns = {c["name"]: c.get("digits", 2) for c in setup.columns}
    reading = {c["name"]: c.get("reading_of", c["name"]) for c in setup.columns}
    grid_runs = recorded(setup, "runs.csv") if setup.grid else []
    blind = score.indiscriminate(setup) if setup.counts else ()
    names = [n for n in dict.fromkeys(r["column"] for r in rows) if n != "seconds_per_round"]
    chosen = list(dict.fromkeys(flag for grid in setup.grid.values() for flag in grid))
    lines = []
    for row in dict.fromkeys(r["row"] for r in rows):
        ours = {r["column"]: r for r in rows if r["row"] == row}
        first = next(iter(ours.values()))
        their_row = setup.published_rows.get(row, row)
        seconds = ours.get("seconds_per_round", {}).get("value")
        lines.append(
            [row, *(first.get(k, "") for k in chosen)]
            + ([score.place_in_grid(setup, row, grid_runs)] if chosen else [])
            + [first["rounds"], first["seeds"]]
            + [
                _cell(
                    ours[n],
                    theirs.get((their_row, reading.get(n, n))),
                    columns.get(n, 2),
                    (their_row, n) in blind and score.counted_row(setup, their_row) == row,
                )
                if n in ours
                else ""
                for n in names
            ]
            + [f"{float(seconds):.3g}" if seconds else ""]
        )
    grid = ["grid"] if chosen else []
    headers = ["row", *chosen, *grid, "rounds", "seeds", *names, "s a round"]
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
        told = [*results.caveats(typed, setup), *_what_counts(item, setup)]
        if setup.reasons:
            told += filter(None, [results.largest_difference(typed, setup)])
        if rows:
            words = results.columns_in_words(setup)
            told.append(f"[Columns](../../docs/metrics.md): {words}.")
        parts.append("\n".join(f"- {line}" for line in told))
        if rows:
            parts.append(_how(setup, rows))
        path = f"{item.name}/{setup.name}"
        parts += [f"![{_caption(setup, figure)}]({path}/{figure.name})" for figure in figures]
    return "\n\n".join(part for part in parts if part)


_CAPTIONS = {
    "results": "What each row came to",
    "curves": "Curves over rounds",
    "density": "Density of clients' values",
    "pareto": "Mean error and its relative deviation",
    "rates": "Results over client and server rate",
    "setting": "Results over a setting",
}


def _caption(setup, figure) -> str:
    told = _CAPTIONS.get(figure.stem.rstrip("_0123456789"))
    return f"{told}. {setup.heading}" if told else setup.heading


def _what_counts(item, setup) -> list[str]:
    """Returns which rows the scoreboard leaves out, where one of several had to be fixed."""
    if not results.published(setup):
        return []
    if not setup.counts:
        same = (s for s in item.setups.values() if s.published == setup.published and s.counts)
        return [f"Shown beside: the scoreboard counts the set-up `{next(same).name}`."]
    return [
        f"The scoreboard counts `{ours}` as the paper's {theirs}; the other form is shown beside."
        for theirs, ours in setup.counted_rows.items()
    ]


def _how(setup, rows) -> str:
    path = f"{setup.item}/{setup.name}"
    told = [f"[results.csv]({path}/results.csv), [runs.csv]({path}/runs.csv)."]
    for name, label in (("data", "Data"), ("device", "Machine"), ("commit", "Commit")):
        # A row whose runs differ in it holds all of them.
        values = dict.fromkeys(v for r in rows for v in (r.get(name) or "").split("; ") if v)
        if values:
            told.append(f"{label}: {'; '.join(values)}.")
    return " ".join(told)


def _why_not_run(setup) -> str:
    if setup.planned and setup.stand_in:
        # The data that it stands in for are not what is missing.
        return f"not yet run, stand-in: {needs.told_hours(setup)}"
    return f"{'not yet run' if setup.planned else 'not run'}: {needs.told(setup)}"


def _overview(items: Sequence[Item]) -> str:
    lines = []
    for item in items:
        states = []
        for setup in item.setups.values():
            if recorded(setup) or any(recorded_folder(setup).glob("*.png")):
                rows = recorded(setup)
                whole = all(score.is_whole(setup, r) for r in rows if r["rounds"])
                missing = rows and not {r["row"] for r in rows} >= setup.rows.keys()
                state = "run" if whole and not missing else "partial"
                if setup.stand_in:
                    state += ", stand-in"
            else:
                state = _why_not_run(setup)
            states.append((setup.name, state))
        told = dict.fromkeys(state for _, state in states)
        text = "; ".join(
            state if len(told) == 1 else f"{', '.join(n for n, s in states if s == state)}: {state}"
            for state in told
        )
        lines.append([f"`{item.name}`", item.title, text])
    return _table(lines, ["item", "", ""])


def _claims(paper: str) -> str:
    """Returns a paper's claims in words as a table, each with its verdict and what shows it."""
    lines = []
    for claim, verdict, shown, _ in claims.of_paper(paper):
        setup = claim["setup"]
        path = f"{setup}/results.csv"
        runs = f"[{setup}]({path})" if (PAPERS / paper / path).exists() else setup
        lines.append([claim["claim"], claim["source"], f"*{verdict}*", shown, runs])
    return _table(lines, ["the paper says", "where", "here", "what shows it", "runs"])


def _claim_counts(papers: Sequence[str]) -> str:
    names = [*claims.VERDICTS, "claims"]
    lines, totals = [], Counter()
    for paper in papers:
        verdicts = claims.of_paper(paper)
        counts = Counter(v.verdict for v in verdicts)
        counts["claims"] = len(verdicts)
        lines.append([paper, *(counts[name] for name in names)])
        totals += counts
    lines.append(["all", *(totals[name] for name in names)])
    return _table(lines, ["paper", *names])


def _order(paper_items: Sequence[Item]) -> str:
    """Returns how the order of methods and their differences compare, a line a column."""
    lines = []
    for item in paper_items:
        for found in order.of_item(item):
            blind = sum(c == found.column for _, c in score.indiscriminate(found.setup))
            name = f"`{item.name}`, {found.setup.name}" + ", stand-in" * bool(found.setup.stand_in)
            numbers = [_rounded(x) for x in (found.tau, found.p, found.slope, found.rank)]
            lines.append([name, found.column, found.methods, *numbers, blind or ""])
    if not lines:
        return "No table with three or more methods was run."
    return _table(lines, ["table", "metric", *_ORDER])


_ORDER = (
    "methods",
    "tau-b",
    "p",
    "slope to FedAvg",
    "rank correlation to FedAvg",
    "not discriminating",
)


def _rounded(value) -> str:
    return "" if math.isnan(value) else f"{value:.2f}"


def _order_counts() -> str:
    """Returns what the orders of methods come to, by paper and kind of data."""
    lines = []
    for paper in sorted({item.paper for item in all_items()}):
        comparisons = [c for item in all_items(paper) for c in order.of_item(item)]
        for data, is_stand_in in (("the paper's", False), ("stand-in", True)):
            some = [c for c in comparisons if bool(c.setup.stand_in) is is_stand_in]
            taus = [c.tau for c in some if not math.isnan(c.tau)]
            if not taus:
                continue
            firm = sum(c.tau > 0 and c.p <= 0.05 for c in some)
            slopes = [c.slope for c in some if not math.isnan(c.slope)]
            median = [f"{statistics.median(of):.2f}" if of else "" for of in (taus, slopes)]
            above = sum(tau > 0 for tau in taus)
            lines.append([paper, data, len(some), above, firm, *median])
    names = ["metrics", "tau-b above 0", "and p at most 0.05", "median tau-b", "median slope"]
    return _table(lines, ["paper", "data", *names])


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
    text = _replace(text, "claims", _claims(paper))
    text = _replace(text, "order", _order(items))
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
    lines, by_item, total = [], [], score.count([])
    for paper in sorted({item.paper for item in all_items()}):
        seen, of_paper = set(), score.count([])
        for item in all_items(paper):
            found = score.cells(item)
            if not found:
                continue
            new, whole = score.count(found, seen), score.count(found)
            by_item.append(
                [
                    paper,
                    f"`{item.name}`",
                    *_counted(whole),
                    new.repeated or "",
                    *_telling(whole, ""),
                ]
            )
            of_paper = _sum(of_paper, new)
        name = (PAPERS / paper / "README.md").read_text().splitlines()[0].removeprefix("# ")
        lines.append([f"[{name}]({paper}/README.md)", *_counted(of_paper, 0)])
        lines[-1] += [of_paper.statuses.total(), *_telling(of_paper, 0)]
        total = _sum(total, of_paper)
    lines.append(["all", *_counted(total, 0), total.statuses.total(), *_telling(total, 0)])
    rows = "whole rows reproduced, of those compared"
    telling = [f"{status}, discriminating" for status in score.COMPARED]
    table = _table(lines, ["paper", *STATUSES, rows, "cells", *telling])
    earlier = "of these cells, in an earlier table"
    items = _table(by_item, ["paper", "item", *STATUSES, rows, earlier, *telling])
    text = _replace(text, "scoreboard", f"{table}\n\n### By table\n\n{items}")
    text = _replace(text, "order", _order_counts())
    text = _replace(text, "data", needs.page_of_data())
    return _replace(text, "claims", _claim_counts(sorted({item.paper for item in all_items()})))


def _counted(found: score.Count, none="") -> list:
    rows = f"{found.rows} of {found.rows_compared}" if found.rows_compared else none
    return [*(found.statuses[s] or none for s in STATUSES), rows]


def _telling(found: score.Count, none) -> list:
    """Returns the compared cells that tell methods apart, by status."""
    return [found.discriminating[s] or none for s in score.COMPARED]


def _sum(one: score.Count, other: score.Count) -> score.Count:
    return score.Count(*(a + b for a, b in zip(one, other, strict=True)))


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
            # Most of a page is written by hand.
            files.write_atomically(str(path), text.encode())
            changed.append(path)
    return changed
