"""The league's results: the outcome of each study, and a comparison of methods over all studies.

    python -m reproduction.league --root=results/reproduce

It reads the runs of `reproduce.py --items=league` and writes CSV files and a page into league/.
What the CSV files have on record stays where there are no new runs. So an own method can join
without repeating the others' runs. league/RULES.md defines studies, targets and the aggregation.
"""

import pathlib

from reproduction import items
from reproduction.items import ReproduceError
from tff_suite import command_line, parser, tables

PARSER = parser.Parser(__doc__)
PARSER.flag("root", "results/reproduce", "Folder of all results.", path=True)
PARSER.flag("folder", help="The league's folder. Default: league/.", path=True)
tables.add_flag(PARSER)

LEAGUE = items.REPO / "league"


@command_line.reported
def main(arguments: list[str]) -> int:
    """Writes the results of the league's runs; returns the exit code."""
    options = PARSER.parse(arguments)
    # Here, since they import SciPy and Matplotlib, which --help need not wait for.
    from reproduction import league_page, league_studies, results

    folder = pathlib.Path(options.folder) if options.folder else LEAGUE
    if not pathlib.Path(options.root).is_dir():
        raise ReproduceError(
            f"There is no folder {options.root}; run reproduce.py --items={folder} first, or set "
            "--root to its --root_output_dir."
        )
    before = league_studies.recorded(folder)
    studies = league_studies.studies_of(folder, options.root)
    records = league_studies.table(folder, studies, before.studies)
    if not records:
        raise ReproduceError(
            f"{options.root} has no completed study; run reproduce.py --items={folder} first."
        )
    finals = league_studies.finals_of(folder, options.root, before.finals)
    runs = league_studies.runs_of(records, studies, before.runs)
    results.write_csv(folder / "studies.csv", records)
    results.write_csv(folder / "runs.csv", runs)
    # Accuracy and recall have columns of their own, so each workload has a file.
    for workload in dict.fromkeys(record["workload"] for record in finals):
        some = [record for record in finals if record["workload"] == workload]
        results.write_csv(folder / f"{workload}_final.csv", some)
    narrow = league_page.chosen(folder)
    unfinished = league_page.unfinished(records, league_page.own(folder))
    counted = [record for record in records if record["method"] not in unfinished]
    summary = league_page.summary(
        league_page.of_all(counted, narrow), league_page.of_all(finals, narrow)
    )
    if summary:
        results.write_csv(folder / "summary.csv", summary)
    league_page.write(folder, counted, runs, summary, finals, unfinished)
    with tables.printed(options.json) as results_:
        results_.say(
            f"{len(records)} studies in {folder / 'studies.csv'}, {len(studies)} of them from runs "
            f"in {options.root}.\n"
        )
        kept = {league_studies.key(record) for record in records}
        left = [record for record in before.studies if league_studies.key(record) not in kept]
        if left:
            results_.say(
                f"{len(left)} recorded studies are left out: their target differs from that of "
                "FedAvg's new runs, or no item has them any more.\n"
            )
        for line in league_page.told_unfinished(unfinished):
            results_.say(f"{line}\n")
        if not summary:
            results_.say("No study is complete: each lacks a method that another one has.")
        for record in summary:
            results_.add(record)
    return 0


if __name__ == "__main__":
    command_line.begin()
    command_line.run(main)
