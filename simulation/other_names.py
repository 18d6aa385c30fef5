"""What flags and tasks of google-research/federated are called here.

Both of its generations are covered: `optimization/main/federated_trainer.py` with flags of its own
for each task (`so_nwp_...`), and the later `optimization/trainer.py` with those of
`tff.simulation.baselines`. Optimizers' flags are `<client|server>_<optimizer>_<argument>` there.
"""

_METHODS = "--algorithm=fedavg, fedavgm (momentum), fedadagrad, fedadam or fedyogi"
_SERVER_RATE = "the server's learning rate is constant here"
_STARTS_AT = "accumulators start at 0, or at tau^2 with --fedopt_variant=algorithm2"

# Flag there → flag here.
_RENAMED = {
    "base_random_seed": "client_datasets_random_seed",
    "client_adagrad_epsilon": "client_epsilon",
    "client_adagrad_initial_accumulator_value": "client_initial_accumulator",
    "client_adam_beta_1": "client_beta1",
    "client_adam_beta_2": "client_beta2",
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

# Flag there → what stands for it here, in words.
_OTHERWISE = {
    "client_sgd_nesterov": "take --client_optimizer=nesterov",
    "emnist_character_model": "the model is the CNN",
    "emnist_cr_model": "the model is the CNN",
    "emnist_character_only_digits": "all 62 classes are learnt",
    "server_adagrad_initial_accumulator": _STARTS_AT,
    "server_adagrad_initial_accumulator_value": _STARTS_AT,
    "server_adam_amsgrad": "take --algorithm=fedams",
    "server_lr_decay_rate": _SERVER_RATE,
    "server_lr_decay_steps": _SERVER_RATE,
    "server_lr_schedule": _SERVER_RATE,
    "server_lr_staircase": _SERVER_RATE,
    "server_lr_warmup_steps": _SERVER_RATE,
    "server_optimizer": f"the server's optimizer is the method's: take {_METHODS}",
    "server_yogi_initial_accumulator_value": _STARTS_AT,
    "shakespeare_character_sequence_length": "sequences have 80 characters",
    "shakespeare_sequence_length": "sequences have 80 characters",
    "so_nwp_num_oov_buckets": "there is one bucket of words out of the vocabulary",
    "so_nwp_sequence_length": "sequences have 20 words",
    "stackoverflow_word_num_out_of_vocab_buckets": "there is one such bucket",
    "stackoverflow_word_sequence_length": "sequences have 20 words",
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
      name: The flag, without dashes.

    Returns:
      The sentence; `None` for a name that is not one of its flags, or means the same here.
    """
    if name in _RENAMED:
        return f"Here it is --{_RENAMED[name]}."
    if name in _OTHERWISE:
        return f"It has no place here: {_OTHERWISE[name]}."
    return None


def of_task(name: str) -> str | None:
    """Returns what to use for a task of google-research/federated, as a sentence, else `None`."""
    return f"Here it is {_TASKS[name]}." if name in _TASKS else None
