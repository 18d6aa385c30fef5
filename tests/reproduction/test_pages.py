"""The pages of results are short, say what the results say, and are kept by the generator."""

import csv
import math
import re
import struct

import pytest

from reproduction import claims, items, readme, results, score

PAPERS = sorted({item.paper for item in items.all_items()})
PAGES = {paper: (items.PAPERS / paper / "README.md").read_text() for paper in PAPERS}
SCOREBOARD = (items.PAPERS / "README.md").read_text()
README = (items.REPO / "README.md").read_text()

MOST_WORDS = 1_500
# A third of what the longest page once had.
MOST_PIXELS = 20_500


def words(page):
    """Returns the number of words that a reader reads outside tables, code and pictures.

    Headings, lists, remarks made by the generator, summaries and folded text count. A word has a
    letter or a digit; of a link its text counts.
    """
    page = re.sub(r"(?s)<!--.*?-->", "", page)
    lines = [line for line in page.splitlines() if not line.startswith(("|", "    "))]
    text = re.sub(r"!\[[^]]*\]\([^)]*\)|<[^>]+>", "", "\n".join(lines))
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return sum(bool(re.search(r"\w", word)) for word in text.split())


def test_what_counts_as_a_word():
    page = "# One two\n\n<!-- begin x -->\n| no | no |\n\n    no\n\n"
    page += "![no](no.png) [three four](no.md) - 5\n"
    assert words(f'{page}<details markdown="1">\n<summary>six</summary>\n\nseven\n</details>') == 7


@pytest.mark.parametrize("paper", PAPERS)
def test_a_papers_page_has_at_most_1500_words(paper):
    assert words(PAGES[paper]) <= MOST_WORDS


def height(page, folder):
    """Returns about how many pixels a page is tall on a phone, 360 wide, with folds closed.

    Letters are 8 pixels wide, lines 24 tall. A column of a table is as wide as its longest word at
    least; what room is left goes to the columns by what they would need.
    """
    page = re.sub(r"(?s)<!--.*?-->", "", page)
    page = re.sub(r"(?s)<details.*?</details>", "one folded line", page)
    room, total = 328, 0
    for block in re.split(r"\n\s*\n", page.strip()):
        picture = re.fullmatch(r"!\[.*\]\((.*)\)", block.strip())
        if picture:
            header = (folder / picture[1]).read_bytes()[:24]
            width, tall = struct.unpack(">II", header[16:24])
            total += room * tall / width + 16
        elif block.startswith("|"):
            total += _height_of_table(block.splitlines(), room) + 16
        else:
            text = re.sub(r"\]\([^)]*\)", "]", block)
            parts = re.split(r"\n(?=- )", text) if text.startswith("- ") else [text]
            total += sum(math.ceil(len(part) * 8 / room) * 24 for part in parts) + 16
    return total


def _height_of_table(lines, room):
    cells = [
        [
            re.sub(r"\]\([^)]*\)|[*`[]", "", cell).strip().split("<br>")
            for cell in re.split(r"(?<!\\)\|", line)[1:-1]
        ]
        for line in [lines[0], *lines[2:]]
    ]
    edge = 27
    columns = list(zip(*cells, strict=True))
    least, most = (
        [edge + 8 * max(widest(part) for cell in column for part in cell) for column in columns]
        for widest in (lambda part: max(map(len, re.split("[ -]", part))), len)
    )
    spare = min(max(room - sum(least), 0), sum(most) - sum(least))
    wanted = max(sum(most) - sum(least), 1)
    widths = [a + spare * (b - a) / wanted for a, b in zip(least, most, strict=True)]
    return sum(
        13
        + 24
        * max(
            sum(max(1, math.ceil(len(part) * 8 / (width - edge))) for part in cell)
            for cell, width in zip(row, widths, strict=True)
        )
        for row in cells
    )


@pytest.mark.parametrize("paper", [*PAPERS, ""])
def test_a_page_is_not_too_tall_for_a_phone(paper):
    page = PAGES.get(paper, SCOREBOARD)
    assert 2_000 < height(page, items.PAPERS / paper) <= MOST_PIXELS


def unfolded(page):
    return re.sub(r"(?s)<details.*?</details>", "", page)


@pytest.mark.parametrize("paper", PAPERS)
def test_tables_show_the_columns_that_the_paper_has(paper):
    shown = 0
    for item in items.all_items(paper):
        block = PAGES[paper].partition(f"<!-- begin {item.name} -->")[2]
        block = unfolded(block.partition(f"<!-- end {item.name} -->")[0])
        headers = [
            line.strip("| ").split(" | ")[1:]
            for line in block.splitlines()
            if line.startswith("| row |")
        ]
        if item.name.startswith("fig"):
            assert not headers, "a figure's numbers are in its CSV"
            continue
        setups = [s for s in item.setups.values() if s.counts and score.recorded(s)]
        assert len(headers) == len(setups)
        for header, setup in zip(headers, setups, strict=True):
            published = {column for _, column in results.published(setup)}
            if published:
                shown += 1
                assert published >= set(header) and header, (item.name, setup.name)
    with open(items.PAPERS / paper / "published.csv", newline="") as f:
        assert shown or not list(csv.DictReader(f))


@pytest.mark.parametrize("paper", PAPERS)
def test_the_overview_counts_the_papers_tables_and_figures_apart_from_ours(paper):
    every = items.all_items(paper)
    theirs = [i for i in every if re.match(r"(Tables?|Figures?) \d+( and \d+)?:", i.title)]
    block = PAGES[paper].split("<!-- begin overview -->")[1]
    (summary,) = re.findall("<summary>(.*) tables and figures: (.*)</summary>", block)[:1]
    assert int(summary[0]) == len(theirs)
    ours = f"and {len(every) - len(theirs)} of our own" if len(every) > len(theirs) else ""
    parts, _, told = summary[1].partition("; ")
    assert told == ours and sum(map(int, re.findall(r"\d+", parts))) == len(theirs)
    # "run" alone promises that no set-up of the paper is left.
    whole = int("".join(re.findall(r"(\d+) run(?:,|$)", parts)) or 0)
    done = [
        all(score.recorded(s) or s.draws for s in i.setups.values() if s.counts and not s.stand_in)
        and any(s.counts and not s.stand_in for s in i.setups.values())
        for i in theirs
    ]
    assert whole <= sum(done)


@pytest.mark.parametrize("paper", PAPERS)
def test_what_was_not_run_is_said_in_a_few_words(paper):
    block = PAGES[paper].split("<!-- begin overview -->")[1].split("<!-- end overview -->")[0]
    states = re.findall(r"not (?:yet )?run[^|<]*", block.partition("</summary>")[2])
    assert states
    for state in states:
        assert re.fullmatch(r"not (yet )?run.*, about [\d,.]+ h ", f"{state.strip()} "), state
        assert len(state.split()) <= 20, state


@pytest.mark.parametrize("paper", PAPERS)
def test_the_diaries_are_linked_and_not_on_the_page(paper):
    page = PAGES[paper]
    assert "(notes.md)" in page
    notes = (items.PAPERS / paper / "notes.md").read_text()
    assert "Estimate, made before the runs" in notes
    assert "Estimate" not in re.sub(r"\[Notes\].*", "", page) and "core-hours" not in page
    for item in items.all_items(paper):
        for setup in item.setups.values():
            if not setup.counts and score.recorded(setup):
                path = f"({item.name}/{setup.name}/results.csv)"
                assert path in notes and path not in page.partition("## Tables and figures")[2]


def row_of(page, block, name):
    lines = page.split(f"<!-- begin {block} -->")[1].split(f"<!-- end {block} -->")[0].splitlines()
    header, *_ = (line for line in lines if line.startswith("| paper |"))
    line = next(line for line in lines if line.startswith((f"| {name} |", f"| [{name}]")))
    names, values = ([cell.strip() for cell in of.strip("|").split("|")] for of in (header, line))
    return dict(zip(names, values, strict=True))


def headline(text):
    begin, end = map(text.index, ("<!-- begin headline -->", "<!-- end headline -->"))
    assert text[:begin].count("\n") < 10
    return text[begin:end].replace("*", "")


def test_the_readme_says_in_its_first_screen_what_the_scoreboard_says():
    box = headline(README)
    cells, said = row_of(SCOREBOARD, "scoreboard", "all"), row_of(SCOREBOARD, "claims", "all")
    compared = [
        (int(cells[f"reproduced{of}"]), int(cells[f"not reproduced{of}"]))
        for of in ("", ", discriminating")
    ]
    for agreed, missed in compared:
        assert f"{agreed} of {agreed + missed}" in box
    assert f"{int(cells['cells']):,}" in box
    numbers = [said[name] for name in ("claims", "holds", "does not hold", "inconclusive")]
    assert "{} claims. Here, {} hold, {} do not hold, {} are inconclusive".format(*numbers) in box


def test_the_headline_follows_the_results(monkeypatch):
    """With nothing recorded nothing is compared: the box is not written by hand."""
    monkeypatch.setattr(score, "recorded", lambda setup, name="": [])
    box = headline(readme.headline(README))
    number = 0
    for paper in PAPERS:
        with open(items.PAPERS / paper / "claims.csv", newline="", encoding="utf-8") as file:
            number += len(list(csv.DictReader(file)))
    assert "reproduced 0 of 0" in box and f"{number} are untested" in box
    assert "no recorded result comes from a GPU" in box


def test_the_headline_counts_results_of_gpus(monkeypatch):
    recorded = score.recorded

    def on_a_gpu(setup, name="results.csv"):
        return [{**row, "device": "GPU (A100)"} for row in recorded(setup, name)]

    monkeypatch.setattr(score, "recorded", on_a_gpu)
    assert "recorded results come from a GPU" in headline(readme.headline(README))


def test_an_installed_package_has_pages_without_a_headline(monkeypatch, tmp_path):
    monkeypatch.setattr(readme, "REPO", tmp_path)
    assert len(readme.pages()) == 2 * len(PAPERS) + 1


def test_the_main_claims_follow_the_results(monkeypatch):
    monkeypatch.setattr(score, "recorded", lambda setup, name="": [])
    page = readme.scoreboard_page(SCOREBOARD)
    rows = [
        row_of(page, "main", page_.splitlines()[0].removeprefix("# ")) for page_ in PAGES.values()
    ]
    assert {row["verdict"] for row in rows} == {"*untested here*"}
    assert row_of(page, "claims", "all")["inconclusive"] == "0"


def test_the_papers_page_opens_with_a_row_a_paper():
    opening = SCOREBOARD.partition("<!-- begin main -->")[0]
    assert not opening.removeprefix("# Papers").strip()
    names = ["main claim", "verdict", "data", "seeds"]
    for paper, page in PAGES.items():
        row = row_of(SCOREBOARD, "main", page.splitlines()[0].removeprefix("# "))
        assert list(row)[1:] == [*names, "one number behind it"] and all(row.values()), paper
        main = claims.main_claim(paper)
        number, _, more = row["one number behind it"].partition("<br>")
        assert any(part.claim["claim"] in number for part in main.parts)
        assert more == f"[{len(main.parts) - 1} more]({paper}/README.md)"
        assert row["main claim"] == main.sentence and main.verdict in row["verdict"]
        opening, _, block = page.partition("<!-- begin main -->")
        assert "\n## " not in opening
        block = block.partition("<!-- end main -->")[0]
        assert all(f"| {name} | {row[name]} |" in block for name in names)
        assert number in block and all(part.claim["claim"] in block for part in main.parts)
    headings = re.findall(r"(?m)^## (.*)", SCOREBOARD)
    assert headings[:3] == ["What was easy", "What was hard", "What is missing"]


@pytest.mark.parametrize(
    ("parts", "verdict"),
    [
        (["holds", "holds"], "holds"),
        (["inconclusive"], "inconclusive"),
        (["holds", "does not hold", "holds"], "in part: 2 of 3 hold, 1 does not hold"),
        (["holds", "untested here"], "in part: 1 of 2 holds, 1 is untested"),
        (
            ["inconclusive", "does not hold"],
            "does not hold: 1 of 2 does not hold, 1 is inconclusive",
        ),
        (
            ["inconclusive", "untested here", "untested here"],
            "inconclusive: 1 of 3 is inconclusive, 2 are untested",
        ),
        (["untested here"], "untested here"),
    ],
)
def test_the_verdict_on_a_main_claim(parts, verdict):
    found = claims.MainClaim("It.", [claims.Verdict({}, part, "") for part in parts])
    assert found.verdict == verdict


def test_an_untested_main_claim_says_what_less_than_the_protocol_shows():
    part = claims.Verdict({}, "untested here", "", outcome="holds")
    found = claims.MainClaim("It.", [part, part._replace(outcome="")])
    assert found.verdict == (
        "untested here; with stand-ins or partial runs, 1 of 2 holds, 1 is untested"
    )


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "needs one main claim"),
        ([("It.", "no such claim")], "'no such claim' is missing"),
        ([("It.", 0), ("Another.", 1)], "needs one main claim"),
    ],
)
def test_a_main_claim_has_parts_among_the_claims(monkeypatch, lines, said):
    known = [v.claim["claim"] for v in claims.of_paper("fedcada")]
    lines = [
        {
            "paper": "fedcada",
            "main claim": main,
            "part": known[part] if isinstance(part, int) else part,
        }
        for main, part in lines
    ]
    monkeypatch.setattr(
        claims, "of_paper", lambda paper: [claims.Verdict({"claim": k}, "holds", "") for k in known]
    )
    monkeypatch.setattr(score, "lines_of", lambda path: lines)
    with pytest.raises(items.ReproduceError, match=said):
        claims.main_claim("fedcada")


@pytest.mark.parametrize(
    ("rounds", "told"),
    [
        ((2, 2, 2, 2), "(all rows 2 of 3)"),
        ((2, 2, 2, 1), "(a 2 of 3, b 2 of 3, c 2 of 3, d 1 of 3)"),
        ((2, 2, 2, 3), "(a 2 of 3, b 2 of 3, c 2 of 3)"),
        ((2, 2), "(a 2 of 3, b 2 of 3)"),
    ],
)
def test_rows_that_lack_the_same_rounds_are_not_listed(rounds, told):
    setup = items.load_item("adafedadam", "table5").setups["synthetic"]
    rows = [
        {"row": row, "rounds": n, "protocol_rounds": 3, "seeds": "1 2 3", "status": "partial"}
        for row, n in zip("abcd", rounds, strict=False)
    ]
    assert told in results.caveats(rows, setup)[0]


def test_a_stand_in_is_explained_once_a_page():
    item = items.load_item("fedda", "table6")
    (setup,) = (s for s in item.setups.values() if s.stand_in)
    said = {}
    first, again = (readme._remarks(item, setup, [], said).splitlines()[0] for _ in range(2))
    assert first == f"- A stand-in, not the paper's experiment: {setup.stand_in}."
    assert again == "- A stand-in, as in Table 6."
