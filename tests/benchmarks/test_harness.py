"""Every benchmark runs, on the smallest of what it measures, and records what its table shows."""

import csv
import importlib
import json
import os
import subprocess
import sys

import pytest

from benchmarks import harness

_RUNS = {
    "memory": ["--workload=w4", "--rounds=2", "--from_round=1"],
    "methods": ["--workloads=w4", "--methods=fedavg", "--turns=1"],
    "operations": ["--workloads=w4"],
    "peaks": ["--cases=per_client-fedavg-20-t2"],
    "scale": ["machinery", "--workloads=w4", "--turns=1"],
    "speed": ["--workloads=w4", "--sides=vectorized", "--starts=1", "--turns=1"],
}


@pytest.mark.quick_cases("memory", "methods")
@pytest.mark.parametrize("name", _RUNS)
def test_a_benchmark_prints_and_writes_its_records(tmp_path, name):
    path = tmp_path / "records.csv"
    command = [sys.executable, "-m", f"benchmarks.{name}", *_RUNS[name], f"--csv={path}", "--json"]
    # Files, not pipes, which what a benchmark starts may hold open.
    with open(tmp_path / "out", "w+") as out, open(tmp_path / "err", "w+") as err:
        code = subprocess.run(command, stdout=out, stderr=err).returncode
        err.seek(0)
        assert code == 0, err.read()
        out.seek(0)
        records = json.load(out)
    with open(path, newline="") as f:
        written = list(csv.DictReader(f))
    assert [{k: str(v) for k, v in r.items()} for r in records] == [
        {k: w[k] for k in r} for r, w in zip(records, written, strict=True)
    ]
    columns = importlib.import_module(f"benchmarks.{name}").BENCHMARK.columns
    assert records and next(iter(columns)) in records[0] and {"machine", "date"} <= set(written[0])


def test_a_benchmark_that_fails_halfway_keeps_its_records(tmp_path, monkeypatch, capsys):
    path = tmp_path / "records.csv"
    benchmark = harness.Benchmark("A benchmark.\n\n    python -m own\n", {"n": "number of {of}"})
    benchmark.flag("of", "apples")
    monkeypatch.setattr(sys, "argv", ["own", f"--csv={path}"])
    monkeypatch.setattr(harness.command_line, "begin", lambda: None)
    monkeypatch.setattr(harness.command_line, "handle_stops", lambda handler: {})

    def records(options):
        yield {"n": 1}
        raise OSError(28, "No space left", "a file")

    with pytest.raises(SystemExit) as ended:
        benchmark.run(records)
    assert ended.value.code == 1
    told = capsys.readouterr()
    assert "number of apples" in told.out and "No space left" in told.err
    assert path.read_text().splitlines()[0] == "n,machine,date"


def test_a_function_alone_is_in_another_process():
    assert harness.alone(os.getpid) != os.getpid()
