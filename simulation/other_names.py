"""Translates names of flags and tasks from other suites, mostly google-research/federated.

All versions of the trainers in that repository's folder `optimization` are covered:

- `main/federated_trainer.py`, with its own flags for each task (`so_nwp_...`),
- `trainer.py`, with its own flags for each task (`so_tp_...`),
- later versions of `trainer.py`, with the arguments of `tff.simulation.baselines`.

Their flags of optimizers are `<client|server>_<optimizer>_<argument>`. The arguments are those of
Keras's optimizers (SGD, Adagrad, Adam), of the repository's own (Yogi, LARS, Shampoo) and of
TensorFlow Addons' LAMB. Their flags that are not listed here exist in this suite with the same
meaning.
"""

import re
from collections.abc import Container

_METHODS = "--algorithm=fedavg, fedavgm (momentum), fedadagrad, fedadam or fedyogi"
_SERVER_RATE = "the server's learning rate is constant here"
_STARTS_AT = "accumulators start at 0, or at tau^2 with --fedopt_variant=algorithm2"
_WORD_MODEL = "the model is FedOpt's, an embedding of 96 and one LSTM layer of 670, nothing tied"

# Flag there → flag here.
_RENAMED = {
    "base_random_seed": "client_datasets_random_seed",
    "client_adagrad_epsilon": "client_epsilon",
    "client_adagrad_initial_accumulator_value": "client_initial_accumulator",
    "client_adam_beta_1": "client_beta1",
    "client_adam_beta_2": "client_beta2",
    "client_adam_epsilon": "client_epsilon",
    "client_lr": "client_learning_rate",
    "client_sgd_momentum": "client_momentum",
    "client_yogi_beta1": "client_beta1",
    "client_yogi_beta2": "client_beta2",
    "client_yogi_epsilon": "client_epsilon",
    "client_yogi_initial_accumulator_value": "client_initial_accumulator",
    "max_client_examples": "max_elements_per_client",
    "max_elements_per_user": "max_elements_per_client",
    "server_adagrad_epsilon": "fedadagrad_tau",
    "server_adam_beta_1": "fedadam_beta1",
    "server_adam_beta_2": "fedadam_beta2",
    "server_adam_epsilon": "fedadam_tau",
    "server_lr": "server_learning_rate",
    "server_sgd_momentum": "fedavgm_momentum",
    "server_yogi_beta1": "fedyogi_beta1",
    "server_yogi_beta2": "fedyogi_beta2",
    "server_yogi_epsilon": "fedyogi_tau",
    "cifar100_crop_size": "cifar100_image_crop",
    "cifar100_distort_train_images": "cifar100_image_distort",
    "cifar100_image_crop_height": "cifar100_image_crop",
    "cifar100_image_crop_width": "cifar100_image_crop",
    "cifar100_image_distort_train_images": "cifar100_image_distort",
    "cifar100_image_model_id": "cifar100_image_model",
    "so_lr_max_elements_per_user": "stackoverflow_tag_max_examples",
    "so_lr_num_validation_examples": "num_validation_examples",
    "so_lr_vocab_tags_size": "stackoverflow_tag_num_tags",
    "so_lr_vocab_tokens_size": "stackoverflow_tag_vocab_size",
    "so_nwp_max_elements_per_user": "stackoverflow_word_max_examples",
    "so_nwp_num_validation_examples": "num_validation_examples",
    "so_nwp_vocab_size": "stackoverflow_word_vocab_size",
    "so_tp_max_elements_per_user": "stackoverflow_tag_max_examples",
    "so_tp_num_validation_examples": "num_validation_examples",
    "so_tp_vocab_tags_size": "stackoverflow_tag_num_tags",
    "so_tp_vocab_tokens_size": "stackoverflow_tag_vocab_size",
    "stackoverflow_tag_tag_vocab_size": "stackoverflow_tag_num_tags",
    "stackoverflow_tag_word_vocab_size": "stackoverflow_tag_vocab_size",
}

# Pattern of their flags → what replaces it here, or why nothing does.
_OTHERWISE = {
    r"(client|server)_(adagrad|adam|sgd|yogi)_name": "an optimizer's operations have no name",
    r"(client|server)_(lamb|lars|shampoo)_\w+": "neither clients nor server have this optimizer",
    r"(client|server)_yogi_(activation|l[12]_regularization_strength)": (
        "Yogi is the published one here, by the sign and without a proximal step"
    ),
    "client_adam_amsgrad": "the clients' Adam is TFF's, without AMSGrad",
    "client_sgd_nesterov": "take --client_optimizer=nesterov",
    "emnist_autoencoder_only_digits": "images of all 62 characters are learnt",
    "emnist_character_debug_seed": "weights and dropout follow --seed",
    "emnist_character_model": "the model is the CNN",
    "emnist_character_model_id": "the model is the CNN",
    "emnist_cr_model": "the model is the CNN",
    "emnist_character_only_digits": "all 62 classes are learnt",
    "rounds_per_profile": "take --profile, which names the rounds themselves (3 or 3-5)",
    "rounds_per_train_eval": "no round evaluates all training data; train/loss is the cohort's",
    "server_adagrad_initial_accumulator": _STARTS_AT,
    "server_adagrad_initial_accumulator_value": _STARTS_AT,
    "server_adam_amsgrad": "take --algorithm=fedams",
    "server_lr_decay_rate": _SERVER_RATE,
    "server_lr_decay_steps": _SERVER_RATE,
    "server_lr_schedule": _SERVER_RATE,
    "server_lr_staircase": _SERVER_RATE,
    "server_lr_warmup_steps": _SERVER_RATE,
    "server_sgd_nesterov": "the server's momentum, --algorithm=fedavgm, has no Nesterov form",
    "server_optimizer": f"the server's optimizer is the method's: take {_METHODS}",
    "server_yogi_initial_accumulator_value": _STARTS_AT,
    "shakespeare_character_sequence_length": "sequences have 80 characters",
    "shakespeare_sequence_length": "sequences have 80 characters",
    "so_nwp_embedding_size": _WORD_MODEL,
    "so_nwp_latent_size": _WORD_MODEL,
    "so_nwp_num_layers": _WORD_MODEL,
    "so_nwp_num_oov_buckets": "there is one bucket of words out of the vocabulary",
    "so_nwp_sequence_length": "sequences have 20 words",
    "so_nwp_shared_embedding": _WORD_MODEL,
    "stackoverflow_word_num_out_of_vocab_buckets": "there is one such bucket",
    "stackoverflow_word_sequence_length": "sequences have 20 words",
    "write_metrics_with_bz2": "metrics.csv is never compressed",
}

# Common name of a setting → the flag or flags here.
_COMMON = {
    "batch_size": ("client_batch_size",),
    "bs": ("client_batch_size",),
    "checkpoint_every": ("rounds_per_checkpoint",),
    "client_column": ("table_user",),
    "client_id": ("table_user",),
    "clients": ("clients_per_round",),
    "columns": ("table_features",),
    "comm_rounds": ("total_rounds",),
    "csv": ("table_path",),
    "csv_file": ("table_path",),
    "csv_path": ("table_path",),
    "data_file": ("table_path",),
    "data_path": ("table_path", "data_dir"),
    "dataset": ("task",),
    "epochs": ("client_epochs_per_round",),
    "eval_every": ("rounds_per_eval",),
    "file": ("table_path",),
    "label": ("table_target",),
    "label_column": ("table_target",),
    "learning_rate": ("client_learning_rate", "server_learning_rate"),
    "local_epochs": ("client_epochs_per_round",),
    "log_dir": ("root_output_dir",),
    "lr": ("client_learning_rate", "server_learning_rate"),
    "method": ("algorithm",),
    "momentum": ("client_momentum", "fedavgm_momentum"),
    "name": ("experiment_name",),
    "num_clients": ("clients_per_round",),
    "num_epochs": ("client_epochs_per_round",),
    "num_rounds": ("total_rounds",),
    "optimizer": ("client_optimizer", "algorithm"),
    "out": ("root_output_dir",),
    "out_dir": ("root_output_dir",),
    "output": ("root_output_dir",),
    "output_dir": ("root_output_dir",),
    "random_seed": ("seed",),
    "rounds": ("total_rounds",),
    "save_every": ("rounds_per_checkpoint",),
    "strategy": ("algorithm",),
    "table": ("table_path",),
    "table_file": ("table_path",),
    "target_column": ("table_target",),
    "user_column": ("table_user",),
}

_TASKS = {
    "cifar100": "cifar100_image",
    "emnist_ae": "emnist_autoencoder",
    "emnist_cr": "emnist_character",
    "shakespeare": "shakespeare_character",
    "stackoverflow_lr": "stackoverflow_tag",
    "stackoverflow_nwp": "stackoverflow_word",
    "stackoverflow_tp": "stackoverflow_tag",
}


def of_flag(name: str) -> str | None:
    """Returns what to use for a flag of google-research/federated, as a sentence.

    Args:
      name: The flag, without dashes; a prefix `no` is ignored.

    Returns:
      The sentence; `None` if the name is not one of its flags, or has the same meaning here.
    """
    name = name.removeprefix("no")
    if name in _RENAMED:
        return f"Here it is --{_RENAMED[name]}."
    reasons = (reason for pattern, reason in _OTHERWISE.items() if re.fullmatch(pattern, name))
    return next((f"It has no place here: {reason}." for reason in reasons), None)


def of_common(name: str, applying: Container[str]) -> str | None:
    """Returns a sentence with the flags for a common name of a setting.

    Args:
      name: The name.
      applying: The flags that the chosen method and task have.

    Returns:
      The sentence; `None` if the name is unknown, or none of its flags applies.
    """
    flags = [flag for flag in _COMMON.get(name, ()) if flag in applying]
    return f"Did you mean {' or '.join(f'--{flag}' for flag in flags)}?" if flags else None


def of_task(name: str) -> str | None:
    """Returns a sentence on what to use for a task of google-research/federated, else `None`."""
    return f"Here it is {_TASKS[name]}." if name in _TASKS else None
