"""Writes the league's items, one per workload, from league/settings/league.toml.

python tools/league.py
"""

import importlib
import pathlib
import sys
import tomllib
from collections.abc import Mapping
from typing import Any

REPO = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO))

from tff_suite import command_line, parser
from tff_suite.errors import FedError

PARSER = parser.Parser(__doc__)
PARSER.flag("folder", help="The league's folder. Default: league/.", path=True)

LEAGUE = REPO / "league"
# The best of the points of a study, and so on up to one.
_FACTOR = 4
# Rounds from one evaluation to the next; the flag files say the same.
_EVALUATED = 5

_HEAD = """# Written by tools/league.py from settings/league.toml; RULES.md has the rules.
title = "League: {title}"

rounds = {rounds}
curve = "{metric}"
curve_label = "validation {name}"
columns = [{{ name = "validation {name}", metric = "{metric}", last_rounds = {last}, digits = 4 }}]
selection = {{ metric = "validation/loss", last_rounds = {last} }}
search = {{ factor = {factor}, rounds = {first}, restart = true }}
seconds = {{ "*" = {seconds} }}
"""


_FINAL = """# Written by tools/league.py from settings/league.toml; RULES.md has the rules.
title = "League: {title}; test data"

rounds = {rounds}
seeds = {seeds}
columns = [
  {{ name = "{name}", metric = "eval/{metric}", digits = 4 }},
  {{ name = "worst tenth", metric = "fairness/{metric}_worst10_u", digits = 4 }},
  {{ name = "std over clients", metric = "fairness/{metric}_std_u", digits = 4 }},
]
figures = []
seconds = {{ "*" = {seconds} }}
"""
# Test data are evaluated at the end of a final run, and a few times before.
_OF_FINAL = ("--evaluate_test=true", "--rounds_per_eval=50")


def read(folder: pathlib.Path = LEAGUE) -> dict[str, Any]:
    """Returns the content of a league's settings/league.toml."""
    return tomllib.loads((folder / "settings" / "league.toml").read_text("utf-8"))


def space(
    league: Mapping[str, Any], workload: Mapping[str, Any], spec: Any, own: Mapping[str, Any]
) -> dict[str, str]:
    """Returns a method's search space in a workload: flag → values as TOML.

    Args:
      league: The content of league.toml.
      workload: Its section on the workload.
      spec: The method's `tff_algos.MethodSpec`.
      own: The method's line.
    """
    found = {}
    # A method with a rate of its own paper needs none.
    if spec.client_learning_rate is None:
        found["client_learning_rate"] = f"{{ log = {workload['client_rate']} }}"
    if spec.has_server_step:
        found["server_learning_rate"] = f"{{ log = {league['server_rate']} }}"
    for flag, values in own.items():
        if flag != "import":
            choices = isinstance(values, Mapping)
            found[flag] = str(values["choices"]) if choices else f"{{ log = {values} }}"
    return found


def item(name: str, league: Mapping[str, Any]) -> str:
    """Returns the item of a workload as TOML.

    Args:
      name: The workload's name.
      league: The content of league.toml.
    """
    from tff_algos import registry

    workload = league["workloads"][name]
    rows, grid = [], []
    for method, own in taking_part(league, workload).items():
        rows.append(_row(name, workload, method, own))
        values = space(league, workload, registry.get(method), own)
        points = ", ".join(f"{flag} = {text}" for flag, text in values.items())
        grid.append(f"{method} = {{ {points} }}")
    metric = workload["metric"]
    parts = [
        _HEAD.format(
            title=workload["title"],
            rounds=workload["rounds"],
            seconds=workload["seconds"],
            name=metric.replace("_", " "),
            metric=f"validation/{metric}",
            last=5 * _EVALUATED,
            factor=_FACTOR,
            first=-(-workload["rounds"] // 8),
        )
    ]
    for study in league["studies"]:
        parts.append(
            f'[setups.study{study}]\ntitle = "{workload["title"]}; study {study}"\n'
            f"seeds = [{study}]\nsample = {{ points = {league['points']}, seed = {study} }}\n"
        )
    every = "".join(f"{line}\n" for line in rows), "".join(f"{line}\n" for line in grid)
    shared = f"[rows]\n{every[0]}\n[grid]\n{every[1]}\n"
    return "\n".join([parts[0], shared, *parts[1:]])


def final(name: str, league: Mapping[str, Any]) -> str:
    """Returns the item of a workload's final runs as TOML.

    Args:
      name: The workload's name.
      league: The content of league.toml.
    """
    workload = league["workloads"][name]
    metric = workload["metric"]
    head = _FINAL.format(
        title=workload["title"],
        rounds=workload["rounds"],
        seconds=workload["seconds"],
        seeds=league["final_seeds"],
        name=metric.replace("_", " "),
        metric=metric,
    )
    tuned = [
        _row(name, workload, method, own, *_OF_FINAL)
        for method, own in taking_part(league, workload).items()
    ]
    untuned = [
        _row(name, workload, method, {}, *_flags(own), *_OF_FINAL)
        for method, own in league["untuned"].items()
    ]
    title = workload["title"]
    return "\n".join(
        [
            head,
            f'[setups.tuned]\ntitle = "{title}; best points, test data"\npoints_of = "{name}"\n',
            "[setups.tuned.rows]",
            *tuned,
            f'\n[setups.untuned]\ntitle = "{title}; without tuning, test data"\n',
            "[setups.untuned.rows]",
            *untuned,
            "",
        ]
    )


def taking_part(league: Mapping[str, Any], workload: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the methods of a workload, each with the content of its line.

    Args:
      league: The content of league.toml.
      workload: Its section on the workload; `only` names the methods if these are not all, and
        `left_out` those that its examples do not fit.

    Raises:
      FedError: If the section names a method that the league does not have.
    """
    every = {**league["methods"], **league["outside"]}
    for key in ("only", "left_out", "fixed"):
        for name in workload.get(key, ()):
            if name not in every:
                raise FedError(
                    f"league.toml: {workload['title']!r} has {key} = {name!r}, but neither "
                    "[methods] nor [outside] has this method."
                )
    names = workload.get("only", every)
    return {name: every[name] for name in names if name not in workload.get("left_out", ())}


def _row(
    name: str, workload: Mapping[str, Any], method: str, own: Mapping[str, Any], *further: str
) -> str:
    fixed = workload.get("fixed", {}).get(method, {})
    flags = [f"{name}.flags", f"--algorithm={method}", *_flags(fixed), *further]
    if "import" in own:
        flags.insert(1, f"--import={own['import']}")
        importlib.import_module(own["import"])
    return f'{method} = "{" ".join(flags)}"'


def _flags(settings: Mapping[str, Any]) -> list[str]:
    return [f"--{flag}={value}" for flag, value in settings.items()]


@command_line.reported
def main(arguments: list[str]) -> int:
    """Writes the items; returns the exit code."""
    options = PARSER.parse(arguments)
    folder = pathlib.Path(options.folder) if options.folder else LEAGUE
    league = read(folder)
    for name in league["workloads"]:
        (folder / f"{name}.toml").write_text(item(name, league), "utf-8")
        (folder / f"{name}_final.toml").write_text(final(name, league), "utf-8")
    return 0


if __name__ == "__main__":
    command_line.begin()
    command_line.run(main)
