"""The pages of papers/ and the README's headline, from the data beside them.

The parts between `<!-- begin NAME -->` and `<!-- end NAME -->` are generated from the items,
published.csv and the results recorded in `papers/<paper>/<item>/<setup>/`. All other text is
written by hand and is kept.
"""

import functools
import math
import pathlib
import re
import shutil
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from reproduction import claims, needs, order, results, score
from reproduction.items import PAPERS, REPO, Item, ReproduceError, Setup, all_items
from reproduction.score import STATUSES, recorded, recorded_folder
from simulation.records import files
from tff_suite import tables


def check_loses_nothing(
    setup: Setup, rows: Mapping[str, tuple[Collection[str], int | None]]
) -> None:
    """Refuses to replace recorded results by ones with fewer rows, seeds or rounds.

    Args:
      setup: The set-up.
      rows: Row → seeds and largest number of rounds of the new results; `None` for rounds that are
        not known yet, or of a diverged run.

    Raises:
      ReproduceError: If the recorded results have more.
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
                f"--record replaces all of {path.parent}, and {lost} would be lost; leave out "
                "--rows, --seeds and --budget, or remove that folder first."
            )


def _extent(path: pathlib.Path) -> dict[str, tuple[list[str], int | None]]:
    """Returns row → seeds and rounds of a results.csv; empty if the file does not exist."""
    return {
        r["row"]: (r["seeds"].split(), int(r["rounds"]) if r["rounds"] else None)
        for r in score.lines_of(path)
    }


def record(setup: Setup, folder: pathlib.Path) -> None:
    """Copies a set-up's results, figures and figures' data into papers/, replacing older ones.

    Args:
      setup: The set-up.
      folder: Folder to which `reproduce.py` wrote them.

    Raises:
      ReproduceError: If the recorded results have more rows, seeds or rounds.
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


def _table(lines: Any, headers: Sequence[str]) -> str:
    """Returns a Markdown table without padding, which would make wide cells unreadable."""
    text = tables.markdown(lines, headers)
    return re.sub(r" {2,}", " ", re.sub(r"-{3,}", "---", text))


_NUMBER = "\u00a0±\u00a0"


def _cell(
    ours: Mapping[str, str],
    theirs: Mapping[str, str] | None,
    digits: Any,
    is_blind: bool = False,
) -> str:
    text = results.format_cell(ours["value"], ours["spread"], digits)
    if ours["rounds"] in ("", None):  # Diverged, or not run.
        text = text or ours["status"]
    if theirs is None or ours["value"] in ("", None):
        return text
    difference = float(ours["value"]) - float(theirs["value"])
    marked = f"{difference:+.{digits}f}"
    if not score.agrees(ours, theirs):
        marked = f"**{marked}**"
    if is_blind:
        marked += " n.d."
    paper = results.format_cell(theirs["value"], theirs["spread"], digits)
    # Non-breaking spaces: on a phone, broken numbers would make rows twice as tall.
    return f"{text}<br>paper {paper}<br>{marked}".replace(" ± ", _NUMBER).replace(
        "paper ", "paper\u00a0"
    )


def side_by_side(
    setup: Setup, rows: Sequence[dict[str, str]], names: Sequence[str] | None = None
) -> str:
    """Returns a set-up's recorded results as a Markdown table, the paper's number in each cell.

    Args:
      setup: The set-up.
      rows: Lines of results.csv.
      names: The columns to show; by default all.
    """
    theirs = results.published(setup)
    columns = {c["name"]: c.get("digits", 2) for c in setup.columns}
    reading = {c["name"]: c.get("reading_of", c["name"]) for c in setup.columns}
    blind = score.indiscriminate(setup) if setup.counts else ()
    names = _measured(rows) if names is None else names
    lines = []
    for row in dict.fromkeys(r["row"] for r in rows):
        ours = {r["column"]: r for r in rows if r["row"] == row}
        their_row = setup.published_rows.get(row, row)
        lines.append(
            [results.short_name(row, setup)]
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
        )
    return _table(lines, ["row", *names])


def _measured(rows: Sequence[Mapping[str, str]]) -> list[str]:
    return [n for n in dict.fromkeys(r["column"] for r in rows) if n != "seconds_per_round"]


def _columns_of_paper(setup: Setup, rows: list[dict[str, str]]) -> list[str]:
    """Returns the columns that the paper's table has.

    Without one for the set-up they are those that other tables of the paper have; where these have
    none of them, all.
    """
    names = _measured(rows)
    published = {column for _, column in results.published(setup)}
    every = {line["column"] for line in score.lines_of(setup.home / "published.csv")}
    for known in (published, every):
        if some := [n for n in names if n in known]:
            return some
    return names


def _settings(setup: Setup, rows: list[dict[str, str]]) -> str:
    """Returns each row's chosen settings, their place in the grid, rounds, seeds and seconds."""
    grid_runs = recorded(setup, "runs.csv") if setup.grid else []
    chosen = list(dict.fromkeys(flag for grid in setup.grid.values() for flag in grid))
    lines = []
    for row in dict.fromkeys(r["row"] for r in rows):
        of_row = {r["column"]: r for r in rows if r["row"] == row}
        first = next(iter(of_row.values()))
        seconds = of_row.get("seconds_per_round", {}).get("value")
        place = [score.place_in_grid(setup, row, grid_runs)] if chosen else []
        settings = [first.get(flag, "") for flag in chosen]
        time = f"{float(seconds):.3g}" if seconds else ""
        lines.append([row, *settings, *place, first["rounds"], first["seeds"], time])
    grid = ["place in the grid"] if chosen else []
    return _table(lines, ["row", *chosen, *grid, "rounds", "seeds", "s per round"])


def _section(item: Item, said: dict[str, str]) -> str:
    """Returns an item's section: its recorded set-ups, each with table, figures and what to know.

    Args:
      item: The item.
      said: What stands in, as the page has said it already → where; what is said now is added.
    """
    parts = [f"### {item.title}"]
    for setup in item.setups.values():
        if setup.counts:
            parts += _of_setup(item, setup, said)
    return "\n\n".join(part for part in parts if part)


def _readings(items: Sequence[Item]) -> str:
    """Returns the sections of recorded set-ups that the scoreboard does not count."""
    parts, said = [], {}
    for item in items:
        some = [_of_setup(item, s, said) for s in item.setups.values() if not s.counts]
        if any(some):
            parts += [f"### {item.title}", *(part for of in some for part in of)]
    return "\n\n".join(part for part in parts if part)


def _of_setup(item: Item, setup: Setup, said: Any) -> list[str]:
    """Returns the parts of a recorded set-up's section; empty if nothing is recorded."""
    rows = recorded(setup)
    figures = sorted(recorded_folder(setup).glob("*.png"))
    if not rows and not figures:
        return []
    seeds = sorted({len(r["seeds"].split()) for r in rows})
    several = " to ".join(dict.fromkeys(map(str, (seeds[0], seeds[-1])))) if seeds else ""
    of_seeds = f" ({several} seed{'s' * (several != '1')})" if several else ""
    heading = f"**{setup.title}**{of_seeds}"
    path = f"{setup.item}/{setup.name}"
    pictures = {f.stem: f"![{_caption(setup, f)}]({path}/{f.name})" for f in figures}
    told = _remarks(item, setup, rows, said)
    how = [_how(setup, rows), _settings(setup, rows) if rows else ""]
    if item.name.startswith("fig"):
        # A figure's table is no table of the paper's: its CSV is beside it.
        drawn = [picture for name, picture in pictures.items() if name != "results"]
        return [heading, *drawn, told, _fold("How it was run", how)]
    published = {row for row, _ in results.published(setup)}
    # Our rows that the paper does not have are only in the CSV.
    compared = [r for r in rows if setup.published_rows.get(r["row"], r["row"]) in published]
    shown = compared or rows
    table = side_by_side(setup, shown, _columns_of_paper(setup, rows)) if rows else ""
    return [heading, table, told, _fold("How it was run, with curves", [*how, *pictures.values()])]


def _fold(summary: str, parts: Iterable[str]) -> str:
    """Returns a folded section; the site needs the attribute `markdown`, GitHub the blank lines."""
    text = "\n\n".join(part for part in parts if part)
    return f'<details markdown="1">\n<summary>{summary}</summary>\n\n{text}\n\n</details>'


def _remarks(item: Item, setup: Setup, rows: list[dict[str, str]], said: Any) -> str:
    """Returns the remarks on a table as a list; a repeated one on a stand-in is abbreviated."""
    typed = [{**r, "rounds": int(r["rounds"]) if r["rounds"] else ""} for r in rows]
    for r in typed:
        r["protocol_rounds"] = int(r.get("protocol_rounds") or setup.rounds)
    told = [*results.caveats(typed, setup), *results.told_versions(rows, setup)]
    told += _what_counts(item, setup)
    if setup.reasons:
        told += filter(None, [results.largest_difference(typed, setup)])
    if setup.counts and score.indiscriminate(setup):
        told.append("n.d.: [not discriminating](../README.md#scoreboard).")
    if setup.stand_in:
        if told[0] in said:
            told[0] = f"A stand-in, as in {said[told[0]]}."
        else:
            said[told[0]] = item.title.partition(":")[0]
    return "\n".join(f"- {line}" for line in told)


_CAPTIONS = {
    "results": "Final result of each row",
    "curves": "Curves over rounds",
    "density": "Density of clients' values",
    "pareto": "Mean error and its relative deviation",
    "rates": "Results over client and server rate",
    "setting": "Results over a setting",
}


def _caption(setup: Setup, figure: pathlib.Path) -> str:
    told = _CAPTIONS.get(figure.stem.rstrip("_0123456789"))
    return f"{told}. {setup.heading}" if told else setup.heading


def _what_counts(item: Item, setup: Setup) -> list[str]:
    """Says which set-up or row the scoreboard counts, if there are several for a published one."""
    if not results.published(setup):
        return []
    if not setup.counts:
        same = (s for s in item.setups.values() if s.published == setup.published and s.counts)
        return [f"The scoreboard counts the set-up `{next(same).name}` instead."]
    return [
        f"The scoreboard counts `{ours}` as the paper's {theirs}, not the other form."
        for theirs, ours in setup.counted_rows.items()
    ]


def _how(setup: Setup, rows: list[dict[str, str]]) -> str:
    """Returns how a set-up was run, as a table."""
    path = f"{setup.item}/{setup.name}"
    command = (
        f"`.venv/bin/python reproduce.py --paper={setup.paper} --item={setup.item} "
        f"--setup={setup.name} --data_dir=DIR`"
    )
    lines = [["command", command]]
    for name, label in (("data", "data"), ("device", "machine"), ("commit", "commits")):
        # If runs of a row differ, the cell lists all values.
        values = dict.fromkeys(v for r in rows for v in (r.get(name) or "").split("; ") if v)
        if values:
            lines.append([label, "; ".join(values)])
    if rows:
        words = "<br>".join(results.columns_in_words(setup))
        files = f"[results.csv]({path}/results.csv), [runs.csv]({path}/runs.csv)"
        lines += [["[columns](../../docs/metrics.md)", words], ["files", files]]
    return _table(lines, ["", ""])


def _why_not_run(setups: Sequence[Setup]) -> str:
    """Says what set-ups with the same needs wait for, with the hours of all of them."""
    planned = "not yet run" if setups[0].planned else "not run"
    names = [needed.name for needed in needs.data(setups[0])]
    hours = [found[0] for setup in setups if (found := needs.hours(setup)) is not None]
    told = [f"needs {' and '.join(names)}"] if names else []
    if setups[0].planned and setups[0].stand_in:
        # A stand-in does not wait for the paper's data.
        told = ["a stand-in"]
    if len(hours) == len(setups):
        number = sum(hours)
        told.append(f"about {number:,.{0 if number >= 10 else 1}f} h")
    return f"{planned}: {', '.join(told)}" if told else planned


def _overview(items: Sequence[Item]) -> str:
    """Returns a folded table: which items were run, and what the others wait for."""
    lines, counts = [], Counter()
    for item in items:
        states = {}
        for setup in item.setups.values():
            states.setdefault(_state(setup), []).append(setup)
        told = []
        for state, setups in states.items():
            of = "" if len(states) == 1 else f"{', '.join(s.name for s in setups)}: "
            told.append(f"{of}{state if isinstance(state, str) else _why_not_run(setups)}")
        counts[_summed_up(item) if _is_of_paper(item) else "ours"] += 1
        lines.append([f"`{item.name}`", item.title, "<br>".join(told)])
    own = counts.pop("ours", 0)
    summary = ", ".join(f"{number} {state}" for state, number in sorted(counts.items()))
    further = f"; and {own} of our own" if own else ""
    return _fold(
        f"{counts.total()} tables and figures: {summary}{further}",
        [_table(lines, ["item", "", "state"])],
    )


def _is_of_paper(item: Item) -> bool:
    """Returns whether an item is a table or figure of its paper, and not one of our own."""
    return re.fullmatch(r"(table|fig)\d+", item.name) is not None


def _summed_up(item: Item) -> str:
    """Returns in a word how far the paper's own set-ups of an item were run."""
    states = {setup.name: _state(setup) for setup in item.setups.values()}
    ran = [name for name, state in states.items() if isinstance(state, str)]
    of_paper = [s for s in item.setups.values() if s.counts and not s.stand_in]
    if of_paper and all(states[setup.name] == "run" for setup in of_paper):
        return "run"
    if any(not item.setups[name].stand_in for name in ran):
        return "run in part"
    return "on stand-ins only" if ran else "not run"


def _state(setup: Setup) -> str | tuple:
    """Returns the state of a set-up that was run, as text; otherwise a tuple of what it lacks."""
    rows = recorded(setup)
    if not rows and not any(recorded_folder(setup).glob("*.png")):
        return setup.planned, setup.stand_in and setup.planned, *needs.data(setup)
    whole = all(score.is_whole(setup, r) for r in rows if r["rounds"])
    missing = rows and not {r["row"] for r in rows} >= setup.rows.keys()
    state = "run" if whole and not missing else "partial"
    return f"{state}, stand-in" if setup.stand_in else state


def _claims(paper: str) -> str:
    """Returns a table of a paper's claims and verdicts; untested claims are folded."""
    decided, untested, stand_ins = [], [], 0
    for verdict in claims.of_paper(paper):
        claim, path = verdict.claim, f"{verdict.claim['setup']}/results.csv"
        runs = f" [runs]({path})" if (PAPERS / paper / path).exists() else ""
        is_untested = verdict.verdict == claims.UNTESTED
        stand_ins += is_untested and bool(verdict.outcome)
        shown = f"{_lines(verdict.explained)}{runs}"
        (untested if is_untested else decided).append(
            [claim["claim"], claim["source"], f"*{verdict.verdict}*", shown]
        )
    names = ["the paper says", "where", "here", "what shows it"]
    parts = [_table(decided, names) if decided else "No claim is decided here."]
    if untested:
        tried = f"{stand_ins} of them tried on stand-ins or in part"
        summary = f"{len(untested)} claims untested here, {tried}"
        parts.append(_fold(summary, [_table(untested, names)]))
    return "\n\n".join(parts)


def _lines(text: str) -> str:
    """Returns a text as a cell of a table."""
    return text.replace("\n", "<br>")


def _claim_counts(papers: Mapping[str, str]) -> str:
    """Returns a line for each paper: how many of its claims have which verdict.

    Args:
      papers: Folder under papers/ → the paper's name.
    """
    names = [*claims.VERDICTS, "claims"]
    lines, totals = [], Counter()
    for paper, paper_name in papers.items():
        counts = _counts_of_claims(paper)
        lines.append([paper_name, *(counts[name] for name in names)])
        totals += counts
    lines.append(["all", *(totals[name] for name in names)])
    return _table(lines, ["paper", *names])


def _main_claims(names: Mapping[str, str]) -> str:
    """Returns a line for each paper: its main claim, the verdict and one number behind it.

    Args:
      names: Folder under papers/ → the paper's name.
    """
    lines, told = [], {}
    for paper, name in names.items():
        main = claims.main_claim(paper)
        page = f"{paper}/README.md"
        # The first part that was run: its place in main_claims.csv does not depend on results.
        shown = next((part for part in main.parts if part.read), main.parts[0])
        number = _part_of_main_claim(shown)
        if others := len(main.parts) - 1:
            number += f"<br>[{others} more]({page})"
        told = _main_claim(main) | {"one number behind it": number}
        lines.append([f"[{name}]({page})", *told.values()])
    return _table(lines, ["paper", *told])


def _main_claim(main: claims.MainClaim) -> dict[str, str]:
    """Returns heading → a paper's main claim, the verdict and the data behind it."""
    data, seeds = {}, set()
    for part in main.parts:
        for setup, record in part.read:
            what = ", ".join(record["data"].split(", ")[:2])
            data[what + ", stand-in" * bool(setup.stand_in)] = None
            seeds.add(len(record["seeds"].split()))
    several = " to ".join(dict.fromkeys(map(str, (min(seeds), max(seeds))))) if seeds else ""
    return {
        "main claim": main.sentence,
        "verdict": f"*{main.verdict}*",
        "data": "<br>".join(data),
        "seeds": several,
    }


def _part_of_main_claim(part: claims.Verdict) -> str:
    """Returns a part of a main claim with its verdict and the comparison that decides it."""
    if not part.read:
        return f"*not run*: {part.claim['claim']}"
    verdict = f"{part.outcome}, {part.flaws}" if part.flaws else part.verdict
    return f"*{verdict}*: {part.claim['claim']}. {part.shown.splitlines()[0]}"


def _counts_of_claims(paper: str) -> Counter:
    counts = Counter(v.verdict for v in claims.of_paper(paper))
    counts["claims"] = counts.total()
    return counts


def _order(paper_items: Sequence[Item]) -> str:
    """Returns one line per column that compares the order of methods and their differences."""
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


def _rounded(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.2f}"


def _order_counts(papers: Mapping[str, str]) -> str:
    """Returns how orders of methods compare, by paper and kind of data.

    Args:
      papers: Folder under papers/ → the paper's name.
    """
    lines = []
    for paper, paper_name in papers.items():
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
            lines.append([paper_name, data, len(some), above, firm, *median])
    names = ["metrics", "tau-b above 0", "and p at most 0.05", "median tau-b", "median slope"]
    return _table(lines, ["paper", "data", *names])


def _replace(text: str, name: str, content: str) -> str:
    """Returns a page with a block replaced, or appended; without content the block goes."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    block = f"{begin}\n{content}\n{end}"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.S)
    if not content:
        return re.sub(rf"\n*{pattern.pattern}\n", "\n", text, flags=re.S)
    if pattern.search(text):
        return pattern.sub(lambda _: block, text)
    return f"{text.rstrip()}\n\n{block}\n"


def paper_page(paper: str, text: str) -> str:
    """Returns a paper's README with its generated parts updated.

    Args:
      paper: Folder under papers/.
      text: The current README.
    """
    items = all_items(paper)
    main = claims.main_claim(paper)
    numbers = {"numbers": "<br>".join(map(_part_of_main_claim, main.parts))}
    first, *others = (_main_claim(main) | numbers).items()
    text = _replace(text, "main", _table(others, first))
    text = _replace(text, "overview", _overview(items))
    text = _replace(text, "claims", _claims(paper))
    text = _replace(text, "order", _order(items))
    said = {}
    for item in items:
        section = _section(item, said)
        text = _replace(text, item.name, section if "\n" in section else "")
    return text


def notes_page(paper: str, text: str) -> str:
    """Returns a paper's notes with the results that are not counted updated.

    Args:
      paper: Folder under papers/.
      text: The current notes.
    """
    readings = _readings(all_items(paper))
    heading = "## Other readings of the paper, not scored\n\n" if readings else ""
    return _replace(text, "readings", heading + readings)


def scoreboard_page(text: str) -> str:
    """Returns papers/README.md with its tables updated.

    Args:
      text: The current page.
    """
    names, lines, by_item, total = {}, [], [], score.count([])
    for paper in sorted({item.paper for item in all_items()}):
        of_paper = _count(paper)
        names[paper] = name = _name_of(paper)
        for item in all_items(paper):
            if found := score.cells(item):
                whole = score.count(found)
                repeated = of_paper[item.name].repeated or ""
                by_item.append(
                    [paper, f"`{item.name}`", *_counted(whole), repeated, *_telling(whole, "")]
                )
        counted = functools.reduce(_sum, of_paper.values())
        link = f"[{name}]({paper}/README.md)"
        cells = counted.statuses.total()
        lines.append([link, *_counted(counted, 0), cells, *_telling(counted, 0)])
        total = _sum(total, counted)
    lines.append(["all", *_counted(total, 0), total.statuses.total(), *_telling(total, 0)])
    rows = "whole rows reproduced, of those compared"
    telling = [f"{status}, discriminating" for status in score.COMPARED]
    table = _table(lines, ["paper", *STATUSES, rows, "cells", *telling])
    earlier = "of these cells, in an earlier table"
    items = _table(by_item, ["paper", "item", *STATUSES, rows, earlier, *telling])
    text = _replace(text, "main", _main_claims(names))
    text = _replace(text, "scoreboard", f"{table}\n\n{_fold('By table', [items])}")
    text = _replace(text, "order", _order_counts(names))
    text = _replace(text, "data", needs.page_of_data())
    return _replace(text, "claims", _claim_counts(names))


def _name_of(paper: str) -> str:
    return (PAPERS / paper / "README.md").read_text().splitlines()[0].removeprefix("# ")


def _count(paper: str) -> dict[str, score.Count]:
    """Returns item → counts of its cells; a number that two tables share is counted once."""
    seen = set()
    return {item.name: score.count(score.cells(item), seen) for item in all_items(paper)}


def headline(text: str) -> str:
    """Returns the repository's README with the summary of the scoreboard updated.

    Args:
      text: The current page.
    """
    papers = sorted({item.paper for item in all_items()})
    total = functools.reduce(_sum, (of for paper in papers for of in _count(paper).values()))
    found = sum(map(_counts_of_claims, papers), Counter())
    agreed, compared = (
        [of[score.COMPARED[0]], sum(of[s] for s in score.COMPARED)]
        for of in (total.statuses, total.discriminating)
    )
    return _replace(
        text,
        "headline",
        _table(
            [
                [
                    "[Methods](docs/methods.md)",
                    "We test each method against an independent NumPy program written from its "
                    "paper.",
                ],
                [
                    "[Published numbers](papers/README.md#scoreboard)",
                    f"The {len(papers)} papers' tables have {total.statuses.total():,}. We could "
                    f"compare {agreed[1]} and reproduced **{agreed[0]} of {agreed[1]}**. Some "
                    "columns cannot distinguish methods; without them, we reproduced "
                    f"{compared[0]} of {compared[1]}. The others were run on stand-ins, or need "
                    "data or hours that we do not have.",
                ],
                [
                    "[Claims](papers/README.md#claims)",
                    f"The papers make {found['claims']} claims. Here, {found[claims.HOLDS]} hold, "
                    f"{found[claims.FAILS]} do not hold, {found[claims.INCONCLUSIVE]} are "
                    f"inconclusive and {found[claims.UNTESTED]} are untested.",
                ],
                ["[GPU](docs/gpu.md)", _on_gpus()],
            ],
            ["what", "what is known"],
        ),
    )


def _on_gpus() -> str:
    """Says how many recorded results come from a GPU."""
    rows = [
        row
        for item in all_items()
        for setup in item.setups.values()
        for row in score.recorded(setup)
    ]
    on = sum("GPU" in row.get("device", "") for row in rows)
    if not on:
        return "Tried on one H100; no recorded result comes from a GPU."
    return f"{on:,} of {len(rows):,} recorded results come from a GPU."


def _counted(found: score.Count, none: Any = "") -> list:
    rows = f"{found.rows} of {found.rows_compared}" if found.rows_compared else none
    return [*(found.statuses[s] or none for s in STATUSES), rows]


def _telling(found: score.Count, none: Any) -> list:
    """Returns the counts of compared cells that discriminate between methods, by status."""
    return [found.discriminating[s] or none for s in score.COMPARED]


def _sum(one: score.Count, other: score.Count) -> score.Count:
    return score.Count(
        one.statuses + other.statuses,
        one.rows + other.rows,
        one.rows_compared + other.rows_compared,
        one.repeated + other.repeated,
        one.discriminating + other.discriminating,
    )


def pages() -> dict[pathlib.Path, str]:
    """Returns path → text of every page with generated parts, up to date."""
    texts = {}
    for paper in sorted({item.paper for item in all_items()}):
        path = PAPERS / paper / "README.md"
        texts[path] = paper_page(paper, path.read_text())
        path = path.with_name("notes.md")
        texts[path] = notes_page(paper, path.read_text())
    path = PAPERS / "README.md"
    texts[path] = scoreboard_page(path.read_text())
    path = REPO / "README.md"
    if path.exists():  # An installed package does not have it.
        texts[path] = headline(path.read_text())
    return texts


def write() -> list[pathlib.Path]:
    """Updates all pages; returns those that changed."""
    changed = []
    for path, text in pages().items():
        if path.read_text() != text:
            # Atomically, since most of a page is written by hand.
            files.write_atomically(str(path), text.encode())
            changed.append(path)
    return changed
