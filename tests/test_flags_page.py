"""docs/flags.md: every flag of the two main commands, and who takes it."""

import pytest

import reproduce
import tff_algos
from simulation import experiment_flags, run_parser
from tests.tasks.test_registry import OWN as TASKS
from tests.tff_algos import cases
from tff_algos import registry
from tff_suite.hparams import HparamError
from tools import flags_page

PAGE = flags_page.PAGE.read_text()
METHODS = sorted(cases.OWN)


def rows():
    """Returns the first and the last cell of each line of the tables."""
    lines = [line for line in PAGE.splitlines() if line.startswith("| `--")]
    cells = [line.strip("| ").replace("\\|", "").split(" | ") for line in lines]
    return [(line[0], line[-1]) for line in cells]


def test_the_page_is_current():
    assert flags_page.page() == PAGE, "run python tools/flags_page.py"


def test_every_flag_is_on_the_page_once():
    flags = [first.strip("`").removeprefix("--").partition("=")[0] for first, _ in rows()]
    own = {"run", "training", *METHODS, *TASKS}
    for flag, (_, owned_by) in run_parser.flag_owners().items():
        if not own & {name for _, name in owned_by}:
            continue
        shared = {flag} | {flag.replace(f"{name}_", "<task>_", 1) for _, name in owned_by}
        assert shared & set(flags), flag
    for name, flag in reproduce.PARSER.flags.items():
        assert name in flags or not flag.hparam.help


def users(flag, known):
    # The first table that has it; that of `reproduce.py` is the last.
    said = next(last for first, last in rows() if first.startswith(f"`--{flag}="))
    named = set(said.replace("`", "").replace(",", "").split())
    return set(known) - named if said.startswith("every") else set(known) & named


def refusal(flags):
    """Returns why a run with these flags is refused; nothing if it is not."""
    try:
        experiment_flags.parse([f"--{flag}={value}" for flag, value in flags.items()])
    except HparamError as e:
        return str(e)
    return ""


GIVEN = {
    "total_rounds": 2,
    "client_batch_size": 2,
    "client_learning_rate": 0.1,
    "task": "synthetic",
}


def flags_of(algorithm):
    spec = tff_algos.get(algorithm)
    flags = {**GIVEN, "algorithm": algorithm}
    flags |= {"clients_per_round": 2} if spec.draws_clients else {}
    return flags | ({"server_learning_rate": 0.5} if spec.has_server_step else {})


@pytest.mark.parametrize("algorithm", METHODS)
def test_a_flag_is_taken_by_the_methods_that_the_page_names_and_no_others(algorithm):
    flags = flags_of(algorithm)
    assert not refusal(flags)
    values = {
        "clients_per_round": [2],
        "server_learning_rate": [0.5],
        "client_weighting": ["uniform", "examples"],
        "aggregator": [name for name in registry.AGGREGATORS if name != "mean"],
    }
    assert values.keys() == flags_page._BY_METHOD.keys()
    for flag, some in values.items():
        is_named = algorithm in users(flag, METHODS)
        private = {"aggregator_noise_multiplier": 0.1, "client_weighting": "uniform"}
        refusals = [
            refusal(flags | {flag: value} | (private if value == "dp" else {})) for value in some
        ]
        assert ("" in refusals) == is_named, flag


@pytest.mark.parametrize("task", sorted(TASKS))
def test_the_folder_of_data_is_for_the_tasks_that_the_page_names(task):
    told = refusal(flags_of("fedavg") | {"task": task, "data_dir": "x"})
    is_refused = "--data_dir is not used" in told
    assert is_refused != (task in users("data_dir", TASKS))
