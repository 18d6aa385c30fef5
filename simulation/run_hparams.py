"""The settings of a run itself, apart from its task's, its method's and those of training.

Each is declared once, with what the command's help and a resumed run make of it.
"""

import dataclasses
from typing import Any

from simulation import runtimes
from tff_suite import hparams as hparams_lib
from tff_suite.hparams import Hparam, Value

# The value of --track_clients that names no clients.
EXTREMES = "extremes"

# What a flag may do when a run resumes: it must be the same; it may change, as it affects no
# completed round; it adds a measurement of the rounds from then on; or it says what the start does
# with the folder, is no setting of the run and is not recorded.
SAME, FREE, MEASURE, ACTION = "same", "free", "measure", "action"

_GOOGLE = "google-research/federated, optimization"


@dataclasses.dataclass(frozen=True)
class RunHparam(Hparam):
    """A setting of a run.

    Attributes:
      common: Whether `--help` shows it; `--helpfull` shows every flag.
      required: Whether every run must set it.
      on_resume: `SAME`, `FREE`, `MEASURE` or `ACTION`.
    """

    common: bool = False
    required: bool = False
    on_resume: str = SAME


def _flag(
    name: str, default: Value | hparams_lib.By, help_text: str, source: str = "choice", **more: Any
) -> RunHparam:
    return RunHparam(name, default, help_text, source=source, flag=name, **more)


RUN_HPARAMS = (
    _flag(
        "task",
        None,
        "What is learnt, and on whose data. Required.",
        "none",
        type=str,
        required=True,
        common=True,
    ),
    _flag(
        "algorithm",
        None,
        "The method. Required.",
        "none",
        type=str,
        required=True,
        common=True,
    ),
    _flag(
        "experiment_name",
        None,
        "Folder of the results under --root_output_dir. Default: <task>_<algorithm>; in "
        "Python also the seed and a digest of the settings.",
        type=str,
        common=True,
        on_resume=FREE,
    ),
    _flag(
        "root_output_dir",
        "results",
        "Folder that holds the folders of experiments.",
        common=True,
        on_resume=FREE,
    ),
    _flag(
        "data_dir",
        None,
        "Folder, or fsspec address (s3://, gs://, ...), of the task's data or of TensorFlow "
        "Datasets. By default the suite searches caches, then downloads it (docs/tasks.md).",
        type=str,
        common=True,
        on_resume=FREE,
    ),
    _flag(
        "use_synthetic_data",
        False,
        "Make data of the true shapes and types instead of reading any.",
        common=True,
    ),
    _flag(
        "total_rounds",
        None,
        "Rounds to train. Required. A run that diverges stops early, with exit code 3 "
        "(docs/exit_codes.md).",
        "none",
        type=int,
        minimum=1,
        required=True,
        common=True,
        on_resume=FREE,
    ),
    _flag(
        "clients_per_round",
        None,
        "Clients drawn for each round, uniformly and without replacement. Required, unless "
        "the method takes all clients.",
        "none",
        type=int,
        minimum=1,
        common=True,
    ),
    _flag(
        "client_epochs_per_round",
        1,
        "Epochs of a client in each round (E).",
        _GOOGLE,
        minimum=1,
        common=True,
    ),
    _flag(
        "client_epochs_distribution",
        "fixed",
        "fixed: every client does --client_epochs_per_round. uniform_1_3: each draws 1, 2 or "
        "3 epochs anew in every round.",
        "AdaFedAdam, Table 1 (uniform_1_3: resource heterogeneity)",
        choices=("fixed", "uniform_1_3"),
    ),
    _flag(
        "client_batch_size",
        None,
        "Examples in a client's minibatch (B). Required. A client with fewer examples takes "
        "all of them.",
        "none",
        type=int,
        minimum=1,
        required=True,
        common=True,
    ),
    _flag(
        "max_elements_per_client",
        None,
        "Use only the first training examples of each client, at most this many. Default: all.",
        type=int,
        minimum=1,
    ),
    _flag(
        "rounds_per_eval",
        1,
        "Rounds between evaluations.",
        _GOOGLE,
        minimum=1,
        common=True,
    ),
    _flag(
        "rounds_per_checkpoint",
        50,
        "Rounds between checkpoints.",
        _GOOGLE,
        minimum=1,
        common=True,
        on_resume=FREE,
    ),
    _flag(
        "num_validation_examples",
        -1,
        "Central test examples evaluated during the run, a fixed draw; -1 is all. The final "
        "evaluation takes all.",
        _GOOGLE,
        minimum=-1,
    ),
    _flag(
        "validation_fraction",
        0.0,
        "Share of each client's training examples to hold out, drawn by --seed. The columns "
        "validation/... measure them.",
        minimum=0.0,
        maximum=1.0,
        exclusive_maximum=True,
    ),
    _flag(
        "validation_clients",
        0.0,
        "Share of the training clients to hold out, drawn by --seed. The columns "
        "validation/... include their examples.",
        minimum=0.0,
        maximum=1.0,
        exclusive_maximum=True,
    ),
    _flag(
        "evaluate_test",
        True,
        "Evaluate test examples. Set it to false to keep test data unseen while you choose "
        "settings on validation data.",
    ),
    _flag(
        "evaluate_improvement",
        False,
        "Record the share of each round's clients whose training loss did not rise. This "
        "costs two passes over their examples.",
        "AdaFed, equation 31",
        on_resume=MEASURE,
    ),
    _flag(
        "evaluate_all_local_data",
        False,
        "Also evaluate clients on all their examples, training and test together "
        "(fairness_all/...).",
        on_resume=MEASURE,
    ),
    _flag(
        "track_clients",
        None,
        "Record these clients' training loss at every evaluation: ids separated by commas, or "
        "`extremes` for the lowest and highest first loss.",
        "AdaFed, Fig. 3",
        type=str,
        on_resume=MEASURE,
    ),
    _flag(
        "evaluate_classes",
        False,
        "Also evaluate the accuracy on each class of the test examples (eval/accuracy_class_<c>).",
        "AdaFed, Table 7",
        on_resume=MEASURE,
    ),
    _flag(
        "client_datasets_random_seed",
        1,
        "Seed that draws the clients of each round.",
        _GOOGLE,
        minimum=0,
        maximum=hparams_lib.MAX_SEED,
    ),
    _flag(
        "seed",
        0,
        "Seed of initial weights, partitions, order of examples, dropout and the rest. Cohorts "
        "use --client_datasets_random_seed.",
        minimum=0,
        maximum=hparams_lib.MAX_SEED,
        common=True,
    ),
    _flag(
        "initial_weights",
        None,
        "Begin with these weights: a .keras, .h5 or .npz file of the same model, a SavedModel's "
        "folder or a finished run's. By default --seed draws them.",
        type=str,
    ),
    _flag(
        "runtime",
        "auto",
        "How rounds run: client by client (per_client), on stacked clients (vectorized), or "
        "through TFF, here (tff) or in its CPU worker (native). auto chooses one, never "
        "native.",
        choices=runtimes.CHOICES,
        common=True,
    ),
    _flag(
        "gpu_memory_mb",
        None,
        "Most MiB that TensorFlow may take of a GPU's memory; refused without a GPU. By "
        "default it takes as much as it needs.",
        type=int,
        minimum=1,
    ),
    _flag(
        "deterministic_ops",
        False,
        "Make a GPU give the same bits every time, so that a resumed run equals an "
        "uninterrupted one. Slower; refused without a GPU.",
    ),
    _flag(
        "precision",
        "float32",
        "What layers compute in, as Keras names it. The mixed ones suit GPUs with tensor "
        "cores; weights, losses and methods stay in float32.",
        "Micikevicius et al. 2018, arXiv 1710.03740; tf.keras.mixed_precision",
        choices=("float32", "mixed_float16", "mixed_bfloat16"),
    ),
    _flag(
        "loss_scale",
        hparams_lib.By("precision", {"mixed_float16": 1024.0}),
        "Factor on gradients inside the model, so that float16 can hold them. Lower it if "
        "clients are dropped because gradients overflow.",
        "Micikevicius et al. 2018, section 3.2",
        minimum=0.0,
        exclusive_minimum=True,
    ),
    _flag(
        "client_state_memory_mb",
        1024,
        "MiB of memory for what clients keep between rounds. The rest goes to "
        "client_states.sqlite in the run's folder.",
        minimum=1,
        on_resume=FREE,
    ),
    _flag(
        "clients_per_chunk",
        None,
        "Process each round in chunks of this many clients, to bound memory. --workers share the "
        "chunks. Changes the last bits of results. Default: one chunk.",
        type=int,
        minimum=1,
    ),
    _flag(
        "workers",
        0,
        "Ray processes that share the chunks of a round; 0 is this process alone. Neither "
        "this nor the next four flags change results.",
        minimum=0,
        on_resume=FREE,
    ),
    _flag(
        "ray_address",
        None,
        "Ray cluster of the workers (auto, host:port). By default Ray starts on this machine.",
        type=str,
        on_resume=FREE,
    ),
    _flag(
        "cpus_per_worker",
        1.0,
        "Cores of a worker; a fraction shares one.",
        minimum=0,
        exclusive_minimum=True,
        on_resume=FREE,
    ),
    _flag(
        "gpus_per_worker",
        0.0,
        "GPUs of a worker; a fraction shares one.",
        minimum=0,
        on_resume=FREE,
    ),
    _flag(
        "worker_timeout",
        600.0,
        "Seconds without any worker after which the run stops with a checkpoint.",
        minimum=0,
        exclusive_minimum=True,
        on_resume=FREE,
    ),
    _flag(
        "max_minutes",
        None,
        "Stop with a checkpoint after the first round that ends later than this. The same "
        "command resumes. Default: no limit.",
        type=float,
        minimum=0,
        exclusive_minimum=True,
        common=True,
        on_resume=FREE,
    ),
    _flag(
        "stop_at",
        None,
        "Stop after the first round whose row of metrics.csv meets this condition, such as "
        "eval/accuracy>=0.9 (>=, <=, > or <). By default all rounds run.",
        type=str,
        on_resume=FREE,
    ),
    _flag(
        "profile",
        None,
        "3 or 3-5: record these rounds with TensorFlow's profiler, for TensorBoard, into "
        "plugins/profile of the run's folder.",
        type=str,
        on_resume=FREE,
    ),
    _flag(
        "wandb_project",
        None,
        "Also show the run in this project of Weights & Biases (make venv-tracking). "
        "WANDB_MODE=offline keeps it on disk.",
        type=str,
        on_resume=FREE,
    ),
    _flag(
        "mlflow_uri",
        None,
        "Also show the run at this tracking address of MLflow, a folder or http://... (make "
        "venv-tracking).",
        type=str,
        on_resume=FREE,
    ),
    _flag(
        "fresh",
        False,
        "Start anew even if the folder holds a run. The old run is kept as "
        "<experiment_name>.replaced-1 or the next free number.",
        common=True,
        on_resume=ACTION,
    ),
    _flag(
        "accept_code_changes",
        False,
        "Go on with the run in the folder although code, model, or the version of its method "
        "or task changed. hparams.json records this.",
        on_resume=ACTION,
    ),
    _flag(
        "import",
        None,
        "Import this module first, which registers methods or tasks. May be given several times.",
        type=str,
        on_resume=FREE,
    ),
)


def _on_resume(*kinds: str) -> frozenset[str]:
    return frozenset(h.name for h in RUN_HPARAMS if h.on_resume in kinds)


# Additional measurements. They can be switched on during a run and cover the rounds from then on.
MEASURES = _on_resume(MEASURE)
# What a start does with the folder. These are not settings of the run, so they are not recorded.
ACTIONS = _on_resume(ACTION)
# Flags that may change on resumption: none of them affects completed rounds.
MAY_CHANGE = _on_resume(FREE, MEASURE, ACTION)
