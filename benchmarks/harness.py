"""What all benchmarks have in common: flags, a table of records, a CSV file, fresh processes.

    BENCHMARK = harness.Benchmark(__doc__, {"workload": "workload", "seconds": "s per round"})
    BENCHMARK.flag("workload", "w4", "A workload of benchmarks.speed.")

    def records(options):
        yield {"workload": options.workload, "seconds": 0.01}

    if __name__ == "__main__":
        BENCHMARK.run(records)

`benchmarks.report` reads the columns of every benchmark without TensorFlow, so these modules import
it inside their functions.
"""

import concurrent.futures
import csv
import datetime
import multiprocessing
import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from tff_suite import command_line, parser, tables


class Benchmark(parser.Parser):
    """The command of a benchmark, with `--csv` and `--json` besides its own flags.

    Attributes:
      columns: Key of a record → title of its column, which may hold the value of a flag:
        `of {base}`. Other keys are only in the CSV file and in the JSON.
    """

    def __init__(self, text: str, columns: Mapping[str, str]):
        """Initialises a command without own flags.

        Args:
          text: As of `Parser`.
          columns: See above.
        """
        super().__init__(text)
        self.columns = columns
        self.flag("csv", help="File to write the records to.", path=True)
        tables.add_flag(self)

    def titles(self, **flags: Any) -> dict[str, str]:
        """Returns the columns with the values of flags in their titles."""
        return {key: title.format(**flags) for key, title in self.columns.items()}

    def run(self, records: Callable[[Any], Iterable[Mapping[str, Any]]]) -> NoReturn:
        """Measures and ends the process.

        The table is printed row by row. If the benchmark fails halfway, the CSV file has the
        records so far.

        Args:
          records: Function from the command's flags to records. The order of the first record's
            keys is that of the file's columns.
        """

        @command_line.reported
        def main(arguments: list[str]) -> int:
            options = self.parse(arguments)
            titles = self.titles(**vars(options))
            with tables.printed(options.json, titles) as table:
                table.say(f"{machine()}\n")
                try:
                    for record in records(options):
                        table.add(record)
                finally:
                    if options.csv and table.records:
                        write_csv(options.csv, table.records)
            return 0

        command_line.begin()
        command_line.stops_raise()
        # TensorFlow reads it when it is imported, here and in processes that this one starts.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        command_line.run(main)


def write_csv(path: str, records: Sequence[Mapping[str, Any]]) -> None:
    """Writes records as a CSV file, each with the machine and date of the measurement."""
    measured = {"machine": machine(), "date": datetime.date.today().isoformat()}
    records = [{**record, **measured} for record in records]
    with open(path, "w", newline="") as f:
        writer = csv.DictWriter(f, list(dict.fromkeys(k for r in records for k in r)))
        writer.writeheader()
        writer.writerows(records)


def machine() -> str:
    """Returns processor, cores and Python in one line."""
    name = platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as f:
            names = [line.split(":", 1)[1].strip() for line in f if line.startswith("model name")]
        name = names[0] if names else name
    return f"{name}, {os.cpu_count()} cores, Python {platform.python_version()}"


def alone(function: Callable[..., Any], *arguments: Any) -> Any:
    """Returns a function's result from a fresh process that does nothing else.

    Args:
      function: A function at the top of a module.
      *arguments: Its arguments, which are pickled.
    """
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as pool:
        return pool.submit(function, *arguments).result()
