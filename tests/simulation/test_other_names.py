"""Flags of google-research/federated that are called otherwise here."""

import pytest

import tasks
from hparams import HparamError
from simulation import experiment_flags, other_names


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            "server_optimizer=adam",
            "take --algorithm=fedavg, fedavgm (momentum), fedadagrad, fedadam",
        ),
        ("server_adam_epsilon=0.001", "--fedadam_tau."),
        ("server_yogi_beta1=0.9", "--fedyogi_beta1."),
        ("server_adagrad_initial_accumulator=0", "start at 0, or at tau^2"),
        ("server_sgd_momentum=0.9", "--fedavgm_momentum."),
        ("client_lr=0.1", "--client_learning_rate."),
        ("max_client_examples=100", "--max_elements_per_client."),
        ("client_sgd_momentum=0.9", "--client_momentum."),
        ("server_lr_schedule=constant", "constant here"),
        ("so_nwp_vocab_size=10000", "--stackoverflow_word_vocab_size."),
    ],
)
def test_a_flag_of_theirs_is_answered_with_ours(given, says):
    with pytest.raises(HparamError) as e:
        experiment_flags.parse(["--task=synthetic", "--algorithm=fedadam", f"--{given}"])
    name = given.split("=")[0]
    assert str(e.value).startswith(f"Unknown flag --{name}. ") and says in str(e.value)
    with pytest.raises(HparamError) as e:
        experiment_flags.from_python({name: 1})
    assert says in str(e.value)


def test_a_task_of_theirs_is_answered_with_ours():
    with pytest.raises(
        HparamError, match=r"Unknown task emnist_cr\. Here it is emnist_character\."
    ):
        experiment_flags.parse(["--task=emnist_cr"])


def test_what_is_named_is_there_and_what_is_theirs_is_not():
    flags = experiment_flags._flag_owners().keys()
    assert flags >= set(other_names._RENAMED.values())
    assert not flags & {*other_names._RENAMED, *other_names._OTHERWISE}
    assert set(tasks.names()) >= set(other_names._TASKS.values())
    assert not set(tasks.names()) & other_names._TASKS.keys()
    for flag in ("client_optimizer", "clients_per_round", "total_rounds", "rounds_per_eval"):
        assert flag in flags and other_names.of_flag(flag) is None
