"""Tables that commands print, as Markdown and as JSON."""

import json
import math
import pathlib
import re

import pandas as pd
import pytest

from simulation.measures import communication
from tff_suite import parser, tables
from tools import count_lines

_REPO = pathlib.Path(__file__).resolve().parents[2]
# What a module does that prints a table by itself.
_TABLE = re.compile(r"tables\.(printed|Table)\(|tables\.markdown\(|--- ?\|")
# What these print is a page that they write.
_PAGES = {"benchmarks.gpu_check", "benchmarks.report", "tools.checked_page"}
# Benchmarks get it from `benchmarks.harness`.
_COMMAND = re.compile(r"^PARSER = |parser\.Parser\(", re.M)


def _commands_with_tables():
    found = []
    for folder in ("benchmarks", "reproduction", "simulation", "tasks", "tff_algos", "tools", "."):
        paths = (_REPO / folder).glob("*.py" if folder == "." else "**/*.py")
        for path in sorted(paths):
            text = path.read_text()
            if _COMMAND.search(text) and _TABLE.search(text) and "print" in text:
                found.append(str(path.relative_to(_REPO).with_suffix("")).replace("/", "."))
    return [name for name in found if name not in _PAGES]


@pytest.mark.parametrize("name", _commands_with_tables())
def test_every_command_that_prints_a_table_takes_json(name):
    source = (_REPO / f"{name.replace('.', '/')}.py").read_text()
    assert "tables.add_flag(PARSER)" in source or re.search(r'flag\(\s*"json"', source)


def test_the_commands_with_tables_are_found():
    found = _commands_with_tables()
    known = {"reproduce", "benchmarks.gpu_kernels", "simulation.runs", "reproduction.league"}
    assert known | {"simulation.measures.communication", "tools.count_lines"} <= set(found)
    assert "benchmarks.workloads" not in found


RECORDS = [{"name": "a|b", "value": 1.5, "hidden": [1]}, {"name": "c", "value": math.nan}]
HEADS = {"name": "the name", "value": "value, s", "note": "note"}


@pytest.mark.parametrize("as_json", [False, True])
def test_records_are_rows_or_json(capsys, as_json):
    with tables.printed(as_json, HEADS) as table:
        table.say("On a machine.\n")
        for record in RECORDS:
            table.add(record)
    told = capsys.readouterr().out
    if as_json:
        assert json.loads(told) == [RECORDS[0], {"name": "c", "value": None}]
    else:
        assert told.splitlines() == [
            "On a machine.",
            "",
            "| the name | value, s | note |",
            "| --- | --- | --- |",
            r"| a\|b | 1.5 |  |",
            "| c | nan |  |",
        ]


def test_without_records_there_is_no_table(capsys):
    with tables.printed(False):
        pass
    assert capsys.readouterr().out == ""
    with tables.printed(True):
        pass
    assert json.loads(capsys.readouterr().out) == []


def _cells(table):
    return [re.split(r" *(?<!\\)\| *", line)[1:-1] for line in table.splitlines()]


def test_names_keep_rows_and_columns_apart():
    rows = [["a|b", 1.5, "01"], ["two\nlines", 2, ""]]
    head, rule, *found = _cells(tables.markdown(rows, ["the|name", "value", "seed"]))
    assert head == [r"the\|name", "value", "seed"] and set("".join(rule)) <= set("-:")
    assert found == [[r"a\|b", "1.5", "01"], ["two lines", "2", ""]]


def test_of_frame():
    frame = pd.DataFrame({"mean": [0.123456, 2.0], "seeds": [3, 10]}, index=["a|b", "01"])
    head, _, first, second = _cells(tables.of_frame(frame, 3))
    assert head == ["", "mean", "seeds"]
    assert first == [r"a\|b", "0.123", "3"] and second == ["01", "2", "10"]
    assert _cells(tables.of_frame(frame, index=False))[2] == ["0.123456", "3"]


def test_an_error_is_not_taken_for_a_result(capsys):
    with pytest.raises(ZeroDivisionError), tables.printed(True) as table:
        table.add({"a": 1})
        raise ZeroDivisionError
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("command", "flags", "keys"),
    [
        (communication, ["fedavg"], ["method", "down", "up"]),
        (count_lines, [], ["folder", "lines", "code"]),
    ],
    ids=["communication", "count_lines"],
)
def test_commands_print_the_same_records(capsys, command, flags, keys):
    assert command.main([*flags, "--json"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert list(records[0]) == keys
    assert command.main(flags) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + len(records)
    for line, record in zip(lines[2:], records, strict=True):
        assert line == f"| {' | '.join(map(str, record.values()))} |"


def test_a_parser_takes_the_flag():
    own = parser.Parser("A command.\n\n    python -m own\n")
    tables.add_flag(own)
    assert own.parse(["--json"]).json and not own.parse([]).json
