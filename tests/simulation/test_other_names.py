"""Flags of google-research/federated that are called otherwise here."""

import re

import pytest

import tasks
from simulation import experiment_flags, other_names, run_parser
from tff_suite.hparams import HparamError

# What its trainers define, in all forms: optimization/main/federated_trainer.py of 2020 and 2021,
# optimization/trainer.py of 2021, and that of 2022 with tff.simulation.baselines. By their source:
# arguments of optimizers' constructors (optimizer_utils.py) and of tasks (task_utils.py) included.
_OPTIMIZERS = {
    "adagrad": "initial_accumulator_value epsilon name",
    "adam": "beta_1 beta_2 epsilon amsgrad name",
    "lamb": (
        "beta_1 beta_2 epsilon weight_decay weight_decay_rate exclude_from_weight_decay "
        "exclude_from_layer_adaptation name"
    ),
    "lars": (
        "momentum weight_decay_rate epsilon exclude_from_weight_decay "
        "exclude_from_layer_adaptation name"
    ),
    "sgd": "momentum nesterov name",
    "shampoo": (
        "momentum gradient_norm_adjuster initial_accumulator_value start_preconditioning_steps "
        "statistics_computation_frequency epsilon matrix_epsilon second_moment_averaging "
        "fallback_to_diagonal_dim max_any_dim block_size block_partition_threshold_size "
        "exponent_multiplier name"
    ),
    "yogi": (
        "beta1 beta2 epsilon l1_regularization_strength l2_regularization_strength "
        "initial_accumulator_value activation name"
    ),
}
_OF_BOTH_SIDES = (
    "optimizer learning_rate lr_schedule lr_warmup_steps lr_decay_steps lr_decay_rate lr_staircase"
)
_OF_THE_RUN = (
    "client_batch_size client_datasets_random_seed client_epochs_per_round clients_per_round "
    "experiment_name max_elements_per_client num_validation_examples root_output_dir "
    "rounds_per_checkpoint rounds_per_eval rounds_per_profile rounds_per_train_eval task "
    "total_rounds write_metrics_with_bz2"
)
_OF_TASKS = (
    "cifar100_crop_size cifar100_distort_train_images emnist_cr_model shakespeare_sequence_length "
    "so_nwp_vocab_size so_nwp_num_oov_buckets so_nwp_sequence_length so_nwp_max_elements_per_user "
    "so_nwp_num_validation_examples so_nwp_embedding_size so_nwp_latent_size so_nwp_num_layers "
    "so_nwp_shared_embedding so_lr_vocab_tokens_size so_lr_vocab_tags_size "
    "so_lr_num_validation_examples so_lr_max_elements_per_user so_tp_vocab_tokens_size "
    "so_tp_vocab_tags_size so_tp_num_validation_examples so_tp_max_elements_per_user "
    "cifar100_image_model_id cifar100_image_crop_height cifar100_image_crop_width "
    "cifar100_image_distort_train_images emnist_autoencoder_only_digits "
    "emnist_character_model_id emnist_character_only_digits emnist_character_debug_seed "
    "shakespeare_character_sequence_length stackoverflow_tag_word_vocab_size "
    "stackoverflow_tag_tag_vocab_size stackoverflow_word_sequence_length "
    "stackoverflow_word_vocab_size stackoverflow_word_num_out_of_vocab_buckets"
)
_THEIRS = [
    *(
        f"{side}_{optimizer}_{argument}"
        for side in ("client", "server")
        for optimizer, arguments in _OPTIMIZERS.items()
        for argument in arguments.split()
    ),
    *(f"{side}_{name}" for side in ("client", "server") for name in _OF_BOTH_SIDES.split()),
    *_OF_THE_RUN.split(),
    *_OF_TASKS.split(),
]
# Means the same in both.
_SAME = set(
    "client_batch_size client_datasets_random_seed client_epochs_per_round client_learning_rate "
    "client_lr_decay_rate client_lr_decay_steps client_lr_schedule client_lr_staircase "
    "client_lr_warmup_steps client_optimizer clients_per_round experiment_name "
    "max_elements_per_client num_validation_examples root_output_dir rounds_per_checkpoint "
    "rounds_per_eval server_learning_rate stackoverflow_word_vocab_size task total_rounds".split()
)
# Of another thing here.
_ALSO_OURS = {"client_adam_epsilon"}


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
        ("so_lr_vocab_tags_size=500", "--stackoverflow_tag_num_tags."),
        ("so_nwp_latent_size=670", "one LSTM layer of 670"),
        ("rounds_per_profile=5", "take --profile, "),
        ("server_lamb_beta_1=0.9", "neither clients nor server have this optimizer"),
        ("nocifar100_distort_train_images", "--cifar100_image_distort."),
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


def test_every_flag_of_theirs_is_answered_or_the_same_here():
    flags = run_parser.flag_owners().keys()
    assert len(_THEIRS) == len(set(_THEIRS)) > 140
    assert flags & set(_THEIRS) == _SAME | _ALSO_OURS
    for name in _THEIRS:
        told = other_names.of_flag(name)
        if name in _SAME:
            assert told is None, name
            continue
        assert told is not None and re.fullmatch(r"(Here it is|It has no place here:) .*\.", told)
        assert flags >= set(re.findall(r"--(\w+)", told)), told


def test_a_flag_of_theirs_that_is_also_one_of_ours_is_answered_where_ours_has_no_use():
    arguments = ["--task=synthetic", "--client_adam_epsilon=1e-4"]
    with pytest.raises(HparamError, match=r"client_adam\. google-.* it is --client_epsilon\.$"):
        experiment_flags.parse(["--algorithm=fedavg", *arguments])
    with pytest.raises(HparamError, match=r"algorithm fedprox.$"):
        experiment_flags.parse(["--algorithm=fedavg", "--task=synthetic", "--fedprox_mu=1"])
    with pytest.raises(HparamError, match=r"^Must be set"):
        experiment_flags.parse(["--algorithm=client_adam", *arguments])


def test_what_is_named_is_there_and_what_is_theirs_is_not():
    flags = run_parser.flag_owners().keys()
    assert flags >= set(other_names._RENAMED.values())
    assert flags & other_names._RENAMED.keys() == _ALSO_OURS
    assert not [f for f in flags for p in other_names._OTHERWISE if re.fullmatch(p, f)]
    assert set(tasks.names()) >= set(other_names._TASKS.values())
    assert not set(tasks.names()) & other_names._TASKS.keys()
