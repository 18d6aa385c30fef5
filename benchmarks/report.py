"""Writes docs/performance.md from the results of the other benchmarks.

    python -m benchmarks.report --results=benchmarks/results --output=docs/performance.md

Results are the CSV files that the benchmarks write with `--csv`. A file's name begins with that of
its benchmark. The page lists benchmarks without results.
"""

import csv
import glob
import os

from tff_suite import command_line, parser

PARSER = parser.Parser(__doc__)
PARSER.flag("results", help="Folder of the CSV files. Default: benchmarks/results.", path=True)
PARSER.flag("output", help="Page to write. Default: docs/performance.md.", path=True)

if __name__ == "__main__":
    command_line.begin(PARSER)

from benchmarks import harness, memory, methods, operations, peaks, speed

_HERE = os.path.dirname(os.path.abspath(__file__))
_TITLES = {
    "w1": "W1: EMNIST CNN, 10 clients of 198 examples, B = 20",
    "w2": "W2: tag regression 10,000 to 500, 10 clients of 300 examples, B = 100, dense",
    "w3": "W3: Shakespeare, 2 LSTM of 256, 10 clients of 20 sequences of 80, B = 4",
    "w4": "W4: softmax regression 60 to 10, 100 clients of 100 examples, B = 10",
    "w5": "W5: as W4 with clients of lognormal(4, 2) + 50 examples, 2,000 at most",
    "w6": "W6: EMNIST CNN with 10 outputs, 10 writers of mnist_writers, B = 20",
    "w7": "W7: CIFAR-100, ResNet-18 with group normalisation, 10 clients of 40 examples, B = 20",
    "w8": "W8: next word, LSTM of 670, 10,004 words, 10 clients of 48 sentences of 20, B = 16",
    "w9": "W9: EMNIST CNN, 100 clients of 7 to 60 examples, B = 20",
    "w10": "W10: MLP 784-200-200-10, 1,000 clients of 5 to 40 examples, B = 10",
}

_TABLES = {"memory": memory, "peaks": peaks, "operations": operations, "methods": methods}


def _read(results: str, benchmark: str) -> list[dict]:
    records = []
    for path in sorted(glob.glob(os.path.join(results, f"{benchmark}*.csv"))):
        with open(path, newline="") as f:
            records += csv.DictReader(f)
    return records


def _measured(records: list[dict]) -> str:
    if not records:
        return "No results yet."
    machines = sorted({f"{r['machine']}, {r['date']}" for r in records})
    return f"Measured on: {'; '.join(machines)}."


def _table(records: list[dict], columns: dict[str, str]) -> list[str]:
    lines = [f"| {' | '.join(columns.values())} |", f"|{' --- |' * len(columns)}"]
    for r in records:
        values = [r.get(name) or "" for name in columns]
        if r.get("note"):
            values[-1] = r["note"]
        lines.append(f"| {' | '.join(values)} |")
    return lines


def _speed(records: list[dict]) -> str:
    columns = speed.BENCHMARK.titles(base="TFF's worker")
    for name in ("workload", "processor_seconds", "note"):
        del columns[name]  # Titles have the first, and lines of what failed the last.
    lines = [_measured(records)]
    measured = {r["side"] for r in records if r.get("seconds")}
    if absent := [peer for peer in speed.PEERS if peer not in measured]:
        lines += ["", f"Not measured yet: {', '.join(absent)}."]
    for name, title in _TITLES.items():
        own = [r for r in records if r["workload"] == name]
        if own:
            lines += ["", f"**{title}**", "", *_table(own, columns)]
    return "\n".join(lines)


def _section(records: list[dict], columns: dict[str, str]) -> str:
    columns = {name: title for name, title in columns.items() if name != "note"}
    return "\n".join([_measured(records), *(["", *_table(records, columns)] if records else [])])


@command_line.reported
def main(arguments: list[str]) -> int:
    """Writes the page."""
    options = PARSER.parse(arguments)
    results = options.results or os.path.join(_HERE, "results")
    output = options.output or os.path.join(_HERE, os.pardir, "docs", "performance.md")
    with open(os.path.join(_HERE, "performance_template.md")) as f:
        template = f.read()
    sections = {
        name: _section(_read(results, name), module.BENCHMARK.titles())
        for name, module in _TABLES.items()
    }
    text = template.format(speed=_speed(_read(results, "speed")), **sections)
    with open(output, "w") as f:
        f.write(text)
    print(f"{os.path.normpath(output)} on {harness.machine()}")
    return 0


if __name__ == "__main__":
    command_line.stops_raise()
    command_line.run(main)
