"""Turns a task's raw public files into the form that loads fast.

    python -m tasks.prepare --task=femnist --source=leaf/data/femnist/data

`--source` is the folder with the publisher's files. The result goes to `--data_dir`, by default the
same folder, from which `run_experiment.py --data_dir=...` reads it. You may interrupt the command
at any moment: run again, it resumes where it stopped, and an incomplete set is never used. On a
finished set, the command checks it.
"""

import os
import time

from tff_suite import command_line, parser

PARSER = parser.Parser(__doc__)
PARSER.flag("task", help="What the data are for.", required=True)
PARSER.flag("source", help="Folder of the raw files.", required=True, path=True)
PARSER.flag("data_dir", help="Folder to make the data in. Default: --source.", path=True)

if __name__ == "__main__":
    command_line.begin(PARSER)

# Read when TensorFlow is imported, which the tasks' modules do.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tasks
from tasks.formats import files
from tff_suite.hparams import HparamError


@command_line.reported
def main(arguments: list[str]) -> int:
    """Prepares a task's data.

    Args:
      arguments: Command line without the program's name.

    Returns:
      The exit code: 0; 2 for wrong flags; 1 for data that is missing or damaged; 130 for Ctrl-C.
    """
    options = PARSER.parse(arguments)
    names = [name for name in tasks.names() if tasks.get(name).preparer]
    prepare = tasks.get(options.task).prepare_fn()
    if prepare is None:
        raise HparamError(
            f"--task={options.task} reads its files as they are; to prepare: {', '.join(names)}"
        )
    files.check_folder(options.source, "--source")
    started = time.monotonic()
    made = prepare(options.source, options.data_dir or options.source)
    verb = f"made in {time.monotonic() - started:.1f} s" if made.new else "is whole and unchanged"
    print(f"{made.path} {verb}")
    for name, (count, published) in made.counts.items():
        beside = "" if published is None else f" (published: {published:,})"
        print(f"  {name}: {count:,}{beside}")
    return 0


if __name__ == "__main__":
    command_line.stops_raise()
    command_line.run(main)
