"""The flags of a run's command line: whose they are, how they are read, and the help on them.

A flag that several owners declare (with equal declarations) is defined once and belongs to all of
them.
"""

import dataclasses
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tasks
import tff_algos
from simulation import other_names
from simulation.run_hparams import RUN_HPARAMS
from tff_algos import tff_names
from tff_suite import parser
from tff_suite.hparams import Hparam, HparamError

# (kind, name) of those that declare a flag, as `("algorithm", "fedavg")`.
Owners = list[tuple[str, str]]

# The head of the command's help.
HELP = """Runs one experiment: a method on a task, round after round, into a folder of results.

    python run_experiment.py --task=synthetic --algorithm=fedavg --total_rounds=100 \\
        --clients_per_round=10 --client_batch_size=10 --client_learning_rate=0.01
    python run_experiment.py --algorithm=fedadam --help

The same command again resumes the run, or says that it is finished. docs/run_folder.md describes
the folder, docs/exit_codes.md the exit codes.
"""

# Learning rates that a search may choose, the value that requests the search, and the number that
# stands in for the rate until the search has chosen one.
RATES = ("client_learning_rate", "server_learning_rate")
TUNE = "tune"
UNTUNED = 0.1

# Flags of training that `--help` shows; `--helpfull` shows all.
_COMMON_OF_TRAINING = ("client_optimizer", *RATES)


class RunParser(parser.Parser):
    """The flags of a run: its own, those of training, and those of every method and task.

    Attributes:
      owners: See `flag_owners`.
    """

    def __init__(self, owners: Mapping[str, Any]):
        super().__init__(HELP)
        self.owners = owners
        for flag, (hparam, _) in owners.items():
            form = "repeated" if flag == "import" else "one"
            self.add(parser.Flag(flag, hparam, form))

    def unknown(self, name: str, arguments: Sequence[str]) -> str:
        """As in `Parser`, but also explains names that other libraries use for our flags."""
        told = other_names.of_flag(name) or tff_names.of_argument(name)
        if told is not None:
            return f"Unknown flag --{name}. {told}"
        applying = _applying(arguments, self.owners)
        owned = [flag for flag in applying if self.owners[flag][0].name == name]
        if owned:
            return f"Unknown flag --{name}. Did you mean --{owned[0]}?"
        told = other_names.of_common(name, applying)
        if told is not None:
            return f"Unknown flag --{name}. {told}"
        return parser.said_of_unknown("flag", name, self.names(), "--", first=applying)

    def help(self, full: bool, given: Mapping[str, Any]) -> str:
        """As in `Parser`, with the flags of the method and the task that are given."""
        told = _help(given.get("algorithm"), given.get("task"), self.owners, full)
        return "\n\n".join([self.head(), *told, *self.tail(full)])


def _applying(arguments: Sequence[str], owners: Mapping[str, tuple[Hparam, Owners]]) -> list[str]:
    """Returns the flags of a run, of training, and of the chosen method and task."""
    pairs = (argument.lstrip("-").partition("=") for argument in arguments)
    chosen = {("run", "run"), ("training", "training"), *((k, name) for k, _, name in pairs)}
    return [flag for flag, (_, owned_by) in owners.items() if not chosen.isdisjoint(owned_by)]


def flag_owners() -> dict[str, tuple[Hparam, list[tuple[str, str]]]]:
    """Returns, for each flag, its declaration and its owners as (kind, name) pairs."""
    owners: dict[str, tuple[Hparam, list]] = {}

    def add(kind: str, name: str, declared: Any) -> None:
        for hparam in declared:
            flag = hparam.flag_name(name)
            known, owned_by = owners.setdefault(flag, (hparam, []))
            if known is not hparam and known != hparam:
                raise HparamError(
                    f"--{flag} is declared differently by {kind} {name} and by "
                    f"{' '.join(owned_by[0])}."
                )
            owned_by.append((kind, name))

    add("run", "run", RUN_HPARAMS)
    add("training", "training", map(_tunable, tff_algos.TRAINING_HPARAMS))
    for name in tff_algos.names():
        add("algorithm", name, tff_algos.get(name).hparams)
    for name in tasks.names():
        add("task", name, tasks.get(name).hparams)
    return owners


def _tunable(hparam: Hparam) -> Hparam:
    """Returns a setting as a flag; the flags of learning rates also accept `TUNE`."""
    if hparam.name not in RATES:
        return hparam
    told = f"{hparam.help} {TUNE}: chosen on validation data (docs/own_data.md)."
    return dataclasses.replace(hparam, help=told, word=TUNE)


def lookup(flag: str, name: str, module: types.ModuleType) -> Any:
    """Returns the specification of a method or task.

    Args:
      flag: `algorithm` or `task`.
      name: Its value.
      module: `tff_algos` or `tasks`.

    Raises:
      HparamError: If there is none of this name.
    """
    if name in module.names():
        return module.get(name)
    told = other_names.of_task(name) if flag == "task" else None
    known = module.names()
    said = f"Unknown {flag} {name}. {told}" if told else parser.said_of_unknown(flag, name, known)
    raise HparamError(f"{said} Known: {', '.join(known)}.")


def refuse_unused(
    given: Iterable[str], known: Mapping[str, Any], owners: Mapping[str, tuple[Hparam, Owners]]
) -> None:
    """Checks that the chosen method and task use every flag that is given.

    Args:
      given: The flags.
      known: `algorithm` and `task`, as far as they are given → their specifications.
      owners: See `flag_owners`.

    Raises:
      HparamError: If a flag belongs to others.
    """
    for flag in given:
        owned_by = owners[flag][1]
        kind = owned_by[0][0]
        if kind not in known or any(known[k].name == name for k, name in owned_by if k in known):
            continue
        names = ", ".join(name for _, name in owned_by)
        told = other_names.of_flag(flag)
        theirs = f" google-research/federated has one of this name, too. {told}" if told else ""
        setting = owners[flag][0].name
        own = next((h for h in known[kind].hparams if h.name == setting), None)
        if own is not None and not told:
            theirs = f" Did you mean --{own.flag_name(known[kind].name)}?"
        raise HparamError(
            f"--{flag} is not used by --{kind}={known[kind].name}: it belongs to {kind} {names}."
            f"{theirs}"
        )
    if "data_dir" in given and "task" in known and not known["task"].needs_data:
        raise HparamError(
            f"--data_dir is not used by --task={known['task'].name}: it belongs to tasks that "
            "read data files."
        )


def _help(algorithm: Any, task: Any, owners: Any, full: bool) -> list[str]:
    """Returns the sections of the help: flags that apply, then names of methods and tasks."""
    chosen = {}
    if algorithm is not None:
        chosen["algorithm"] = lookup("algorithm", algorithm, tff_algos)
    if task is not None:
        chosen["task"] = lookup("task", task, tasks)
    common = {h.name for h in RUN_HPARAMS if h.common}.union(_COMMON_OF_TRAINING)
    sections = []
    titles = {"run": "The run:", "training": "Training on clients:"}
    for kind, spec in chosen.items():
        titles[kind] = f"{kind.capitalize()} {spec.name}: {spec.summary}"
        if getattr(spec, "paper", ""):
            titles[kind] += f" ({spec.paper})"
    for kind, title in titles.items():
        lines = [title]
        for flag, (hparam, owned_by) in owners.items():
            applies = any(
                k == kind and (k not in chosen or name == chosen[k].name) for k, name in owned_by
            )
            if flag == "data_dir" and "task" in chosen and not chosen["task"].needs_data:
                applies = False
            if kind not in chosen and not full and flag not in common:
                applies = False
            if applies:
                default = hparam.describe_default()
                rates = ("client_learning_rate", "server_learning_rate")
                if flag in rates and "algorithm" in chosen:
                    rate = getattr(chosen["algorithm"], flag)
                    default = "unset" if rate is None else str(rate)
                lines.append(_help_of_flag(flag, hparam, default))
        if len(lines) == 1:
            lines.append("  (no settings of its own)")
        sections.append("\n".join(lines))
    for kind, module in (("algorithm", tff_algos), ("task", tasks)):
        if kind not in chosen:
            lines = [f"--{kind} is one of (add --{kind}=<name> to --help for its own flags):"]
            width = max(map(len, module.names()), default=0)
            lines += [f"  {name:{width}}  {module.get(name).summary}" for name in module.names()]
            sections.append("\n".join(lines))
    return sections


def _help_of_flag(flag: str, hparam: Any, default: Any) -> Any:
    facts = [] if default == "unset" else [f"default: {default}"]
    if hparam.describe_range():
        facts.append(hparam.describe_range())
    if hparam.source not in ("choice", "none"):  # These mean that it has no source.
        facts.append(f"source: {hparam.source}")
    return parser.described(f"--{flag}=<{parser.kind_of(hparam)}>", hparam.help, facts)
