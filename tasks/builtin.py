"""The suite's own tasks: names, settings with defaults and sources. Knows nothing of TensorFlow."""

import functools
from collections.abc import Callable, Mapping, Sequence

from hparams import Hparam, HparamError, Value
from tasks.registry import Clients, TaskSpec, register

_Settings = Mapping[str, Value]

# More than any set has training examples.
_MAX_CLIENTS = 1_000_000


def _generated(settings: _Settings, synthetic: bool, default: int = 0) -> Clients:
    """Clients that the suite makes, as many as are asked for."""
    return Clients.numbered(settings["num_clients"] or default)


def _at_most(published: int, made: int) -> Callable[[_Settings, bool], Clients]:
    """Clients of a published set: so many there, and so many with `use_synthetic_data`."""

    def clients(settings, synthetic):
        number = made if synthetic else published
        return Clients(min(number, settings.get("num_clients") or number))

    return clients


def _init(default: str, source: str) -> Hparam:
    return Hparam(
        name="init",
        default=default,
        help=(
            "Initial weights: `torch` draws weights and biases uniformly from ±1/sqrt(fan_in); "
            "`keras` draws weights by Glorot's uniform rule and starts biases at 0."
        ),
        source=source,
        choices=("torch", "keras"),
    )


def _text_init(default: str, source: str, lstm_kernel: str = "Glorot's uniform rule") -> Hparam:
    return Hparam(
        name="init",
        default=default,
        help=(
            "Initial weights: `torch` draws dense and LSTM weights and biases uniformly from "
            "±1/sqrt(fan_in) or ±1/sqrt(units) and embeddings from N(0, 1); `keras` draws dense "
            f"weights by Glorot's uniform rule, LSTM input weights by {lstm_kernel}, recurrent "
            "weights orthogonal and embeddings from U(-0.05, 0.05), and starts biases at 0 but "
            "forget gates' at 1."
        ),
        source=source,
        choices=("torch", "keras"),
    )


def _partition_seed(what: str) -> Hparam:
    return Hparam(
        name="partition_seed",
        default=None,
        type=int,
        help=f"Seed of {what}; not set: the run's --seed.",
        source="choice",
        minimum=0,
        maximum=2**32 - 1,
    )


_MIN_SHARE = Hparam(
    name="min_share",
    only_with=("partition", ("dirichlet",)),
    default=None,
    type=float,
    help=(
        "Proportions are redrawn until every client holds this share of the average "
        "number of examples (and two examples); only with partition=dirichlet, where "
        "not set means 0.01."
    ),
    source="AdaFedAdam's released partitioner (1 % of the average)",
    minimum=0,
    maximum=1,
    exclusive_maximum=True,
)

register(
    TaskSpec(
        name="synthetic",
        summary="Softmax regression on generated clients (60 inputs, 10 classes, 610 parameters).",
        loader="tasks.datasets.synthetic:load",
        class_labels=True,
        needs_data=False,
        clients=_generated,
        hparams=(
            Hparam(
                name="generator",
                default="leaf",
                help=(
                    "`leaf` is LEAF's own generator (one cluster of client models); `alpha_beta` "
                    "is Synthetic(alpha, beta) of the FedProx paper. The two give different data."
                ),
                source="AdaFedAdam, Synthetic: its published rows fit LEAF's generator",
                choices=("leaf", "alpha_beta"),
            ),
            Hparam(
                name="num_clients",
                default=100,
                help="Number of clients.",
                source="AdaFedAdam, Synthetic (FedProx's own sets have 30)",
                minimum=1,
                maximum=_MAX_CLIENTS,
            ),
            Hparam(
                name="data_seed",
                default=931231,
                help=(
                    "Seed of the generated examples; another one moves average accuracies by "
                    "several points. Apart from --seed, so that runs differ in seed on equal data."
                ),
                source="LEAF, data/synthetic",
                minimum=0,
                maximum=2**32 - 1,
            ),
            Hparam(
                name="max_examples",
                default=None,
                type=int,
                help="Most examples of a client; not set: 1000 with `leaf`, no limit otherwise.",
                source="LEAF, data/synthetic; FedProx's code has no limit",
                minimum=5,
            ),
            Hparam(
                name="alpha",
                only_with=("generator", ("alpha_beta",)),
                default=None,
                type=float,
                help=(
                    "Standard deviation of the centres of clients' true models; only with "
                    "generator=alpha_beta, where not set means 1. It changes no label: a centre "
                    "shifts an example's scores for all classes alike."
                ),
                source="FedProx, Synthetic(1, 1)",
                minimum=0,
            ),
            Hparam(
                name="beta",
                only_with=("generator", ("alpha_beta",)),
                default=None,
                type=float,
                help=(
                    "Standard deviation of the centres of clients' inputs; only with "
                    "generator=alpha_beta, where not set means 1."
                ),
                source="FedProx, Synthetic(1, 1)",
                minimum=0,
            ),
            Hparam(
                name="test_fraction",
                default=0.2,
                help="Share of each client's examples that is its test split.",
                source="AdaFedAdam: local 80/20 split, drawn before training",
                minimum=0,
                maximum=1,
                exclusive_minimum=True,
                exclusive_maximum=True,
            ),
            _partition_seed("the clients' train/test splits"),
            _init("torch", "AdaFedAdam (PyTorch)"),
        ),
    )
)

FASHION_CLASSES = (
    "t_shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle_boot",
)
FASHION_THREE_CLASSES = "shirt,pullover,t_shirt"


def _check_fashion_mnist(settings):
    names = (settings["classes"] or FASHION_THREE_CLASSES).split(",")
    for name in names:
        if name not in FASHION_CLASSES:
            raise HparamError(
                f"fashion_mnist: classes has {name!r}, which is none of "
                f"{', '.join(FASHION_CLASSES)}."
            )
    if len(set(names)) < len(names):
        raise HparamError(f"fashion_mnist: of the classes {','.join(names)} one is named twice.")


def _fashion_mnist_clients(settings, synthetic):
    if settings["partition"] == "class":
        ids = (settings["classes"] or FASHION_THREE_CLASSES).split(",")
        return Clients(len(ids), ids)
    return _generated(settings, synthetic, default=20)


register(
    TaskSpec(
        name="fashion_mnist",
        summary="Fashion-MNIST among generated clients, MLP 784-200-200-10 (199,210 parameters).",
        loader="tasks.datasets.fashion_mnist:load",
        class_labels=True,
        check=_check_fashion_mnist,
        clients=_fashion_mnist_clients,
        hparams=(
            Hparam(
                name="partition",
                default="dirichlet",
                help=(
                    "How the 60,000 training examples are dealt to clients: `dirichlet` deals each "
                    "class in proportions drawn from a Dirichlet distribution over clients, so "
                    "that sizes are unequal; `iid` deals at random in equal sizes; `shards` sorts "
                    "by label, cuts into equal shards and deals these; `class` gives each client "
                    "one class, its official test images as tests, and the model no other classes."
                ),
                source="FedCAda Table 1, non-iid; AdaFed, Fashion MNIST: class",
                choices=("dirichlet", "iid", "shards", "class"),
            ),
            Hparam(
                name="num_clients",
                only_with=("partition", ("dirichlet", "iid", "shards")),
                default=None,
                type=int,
                help=(
                    "Number of clients; FedCAda's cross-device runs have 100. Not with "
                    "partition=class; elsewhere not set means 20."
                ),
                source="FedCAda Table 1, cross-silo",
                minimum=1,
                maximum=_MAX_CLIENTS,
            ),
            Hparam(
                name="classes",
                only_with=("partition", ("class",)),
                default=None,
                type=str,
                help=(
                    "The clients' classes, of t_shirt, trouser, pullover, dress, coat, sandal, "
                    "shirt, sneaker, bag and ankle_boot; only with partition=class, where not set "
                    "means shirt,pullover,t_shirt."
                ),
                source="AdaFed, Fashion MNIST, after AFL and q-FFL (three outputs, as its code)",
            ),
            Hparam(
                name="alpha",
                only_with=("partition", ("dirichlet",)),
                default=None,
                type=float,
                help=(
                    "Concentration of the Dirichlet distribution, smaller is less even; only with "
                    "partition=dirichlet, where not set means 0.1."
                ),
                source="FedCAda Table 1: Dir(0.1)",
                minimum=0,
                exclusive_minimum=True,
            ),
            _MIN_SHARE,
            Hparam(
                name="shards_per_client",
                only_with=("partition", ("shards",)),
                default=None,
                type=int,
                help="Shards of a client; only with partition=shards, where not set means 2.",
                source="AdaFed, CIFAR-10 setup 1; McMahan et al. 2017",
                minimum=1,
            ),
            Hparam(
                name="test_fraction",
                only_with=("partition", ("dirichlet", "iid", "shards")),
                default=None,
                type=float,
                help=(
                    "Share of each client's examples that is its own test split, drawn at random "
                    "and so of its own label distribution; 0: clients have no tests. The official "
                    "10,000 test examples are the central test and belong to no client. Not with "
                    "partition=class; elsewhere not set means 0.25."
                ),
                source="FedCAda: 75/25 local split",
                minimum=0,
                maximum=1,
                exclusive_maximum=True,
            ),
            _partition_seed("the partition and of the clients' train/test splits"),
            Hparam(
                name="pixels",
                default="unit",
                type=str,
                choices=("unit", "standardized"),
                help=(
                    "unit: in [0, 1]; standardized: less the training images' mean, 0.2860, over "
                    "their standard deviation, 0.3530, as PyTorch programs often have them."
                ),
                source="choice; neither FedCAda nor AdaFed says",
            ),
            _init("torch", "FedCAda and AdaFed (PyTorch)"),
        ),
    )
)

register(
    TaskSpec(
        name="mnist_writers",
        summary=(
            "MNIST digits by their NIST writers, a stand-in for the digits of Federated EMNIST: "
            "FedOpt's CNN with 10 outputs (1,199,882 parameters)."
        ),
        loader="tasks.datasets.mnist_writers:load",
        class_labels=True,
        clients=_at_most(539, 20),
        hparams=(
            Hparam(
                name="test_fraction",
                default=0.2,
                help=(
                    "Share of each of the 539 writers' examples that is the writer's own test "
                    "split; 0: writers have no tests. The official 10,000 test examples, by 297 "
                    "other writers, are the central test. MNIST's digits are size-normalised and "
                    "centred, Federated EMNIST's are not: this task stands in for it and is not it."
                ),
                source="choice, after AdaFedAdam's local 80/20 split",
                minimum=0,
                maximum=1,
                exclusive_maximum=True,
            ),
            Hparam(
                name="num_clients",
                default=None,
                type=int,
                help="Number of writers, drawn at random; not set: all 539.",
                source="choice",
                minimum=1,
            ),
            _partition_seed("the draw of writers and of their train/test splits"),
            _init("keras", "FedOpt (TFF)"),
        ),
    )
)

register(
    TaskSpec(
        name="emnist_character",
        summary=(
            "TFF's Federated EMNIST: 3,400 writers, 62 characters, FedOpt's CNN "
            "(1,206,590 parameters)."
        ),
        loader="tasks.datasets.emnist_character:load",
        class_labels=True,
        clients=_at_most(3400, 10),
        hparams=(_init("keras", "FedOpt (TFF)"),),
    )
)

register(
    TaskSpec(
        name="emnist_autoencoder",
        summary=(
            "TFF's Federated EMNIST restored from 30 numbers: FedOpt's autoencoder "
            "(2,837,314 parameters)."
        ),
        loader="tasks.datasets.emnist_autoencoder:load",
        clients=lambda settings, synthetic: (
            _at_most(539, 20) if settings["source"] == "mnist" else _at_most(3400, 10)
        )(settings, synthetic),
        hparams=(
            Hparam(
                name="source",
                default="emnist",
                help=(
                    "`emnist` is TFF's file, `mnist` MNIST's digits by their writers, a stand-in "
                    "(see mnist_writers)."
                ),
                source="FedOpt, EMNIST AE",
                choices=("emnist", "mnist"),
            ),
            Hparam(
                name="test_fraction",
                only_with=("source", ("mnist",)),
                default=None,
                type=float,
                help=(
                    "Share of each writer's examples that is the writer's own test split; only "
                    "with source=mnist, where not set means 0.2. TFF's file has a split of its own."
                ),
                source="choice, after AdaFedAdam's local 80/20 split",
                minimum=0,
                maximum=1,
                exclusive_maximum=True,
            ),
            Hparam(
                name="code",
                default="linear",
                help=(
                    "Activation of the 30 units in the middle: `linear` as in the code that gave "
                    "the published numbers, or `sigmoid` as FedOpt's Table 3 prints it."
                ),
                source="FedOpt's released code; TFF",
                choices=("linear", "sigmoid"),
            ),
            Hparam(
                name="partition_seed",
                only_with=("source", ("mnist",)),
                default=None,
                type=int,
                help=(
                    "Seed of the writers' train/test splits; only with source=mnist, where not set "
                    "means the run's --seed."
                ),
                source="choice",
                minimum=0,
                maximum=2**32 - 1,
            ),
            _init("keras", "FedOpt (TFF)"),
        ),
    )
)


def _check_femnist(settings):
    if settings["partition"] == "skewed" and settings["split"] == "source":
        raise HparamError("femnist: partition=skewed makes clients anew and needs split=local.")


def _femnist_clients(settings, synthetic):
    if settings["partition"] == "skewed":
        return _generated(settings, synthetic, default=100)
    # LEAF's own script makes more or fewer writers by its arguments.
    if settings["source"] == "tff" or synthetic:
        return _at_most(3400, 12)(settings, synthetic)
    return None if settings["num_clients"] is None else Clients(settings["num_clients"])


register(
    TaskSpec(
        name="femnist",
        summary=(
            "Characters by their 3,550 writers (LEAF): AdaFedAdam's MLP 784-128-62 (108,478 "
            "parameters) or Ditto's CNN (222,078)."
        ),
        loader="tasks.datasets.femnist:load",
        class_labels=True,
        preparer="tasks.datasets.femnist:prepare",
        check=_check_femnist,
        clients=_femnist_clients,
        hparams=(
            Hparam(
                name="source",
                default="auto",
                help=(
                    "`leaf` reads LEAF's JSON files or what tasks.prepare made of them, `tff` "
                    "TFF's sqlite file of 3,400 writers; `auto` reads LEAF's if --data_dir has "
                    "them, else TFF's."
                ),
                source="AdaFedAdam, Femnist; AdaFed: LEAF",
                choices=("auto", "leaf", "tff"),
            ),
            Hparam(
                name="partition",
                default="writers",
                help=(
                    "`writers`: a client is a writer; `skewed`: the letters a to j of all writers "
                    "are dealt to clients that have some of the ten letters each, drawn at random, "
                    "and equal shares of a letter. AdaFed does not say which or how many."
                ),
                source="AdaFedAdam, Femnist; AdaFed Table 3: both",
                choices=("writers", "skewed"),
            ),
            Hparam(
                name="num_clients",
                default=None,
                type=int,
                help="Number of clients, writers drawn at random; not set: all, or 100 if skewed.",
                source="AdaFedAdam; AdaFed: 500 writers, 100 skewed",
                minimum=1,
                maximum=_MAX_CLIENTS,
            ),
            Hparam(
                name="classes_per_client",
                only_with=("partition", ("skewed",)),
                default=None,
                type=int,
                help="Letters of a client; only with partition=skewed, where not set means 5.",
                source="AdaFed Table 3",
                minimum=1,
                maximum=10,
            ),
            Hparam(
                name="split",
                default="local",
                help=(
                    "`local` splits each client's examples, train and test of the source "
                    "together, at random; `source` keeps the split that the files have."
                ),
                source="AdaFedAdam: local 80/20 split, drawn before training",
                choices=("local", "source"),
            ),
            Hparam(
                name="test_fraction",
                only_with=("split", ("local",)),
                default=None,
                type=float,
                help=(
                    "Share of each client's examples that is its test split; only with "
                    "split=local, where not set means 0.2; 0: clients have no tests."
                ),
                source="AdaFedAdam: local 80/20 split",
                minimum=0,
                maximum=1,
                exclusive_maximum=True,
            ),
            Hparam(
                name="model",
                default="mlp",
                help="`mlp` has 128 hidden units, `cnn` two convolutions and 128 units.",
                source="AdaFedAdam: mlp; AdaFed: cnn",
                choices=("mlp", "cnn"),
            ),
            _partition_seed("the draw of clients and of their train/test splits"),
            _init("torch", "AdaFedAdam and AdaFed (PyTorch)"),
        ),
    )
)


def _check_shakespeare(settings):
    chosen = settings["roles"], settings["examples"]
    if settings["source"] == "tff" and chosen != ("tff", "sequences"):
        raise HparamError(
            "shakespeare_character: TFF's file has roles=tff and examples=sequences only; "
            "use source=text."
        )


def _shakespeare_clients(settings, synthetic):
    published = {"tff": 715, "leaf": 1129, "mcmahan": 1146}[settings["roles"]]
    number = 10 if synthetic else published
    if settings["num_clients"] is None:
        return Clients(max(0, number - settings["num_heldout_clients"]))
    return Clients(min(number, settings["num_clients"]))


register(
    TaskSpec(
        name="shakespeare_character",
        summary=(
            "Next character in what a role of Shakespeare's says: FedOpt's two LSTM layers "
            "(820,522 parameters)."
        ),
        loader="tasks.datasets.shakespeare_character:load",
        check=_check_shakespeare,
        clients=_shakespeare_clients,
        hparams=(
            Hparam(
                name="source",
                default="auto",
                help=(
                    "`tff` reads TFF's sqlite file, `text` the play text of 1994; `auto` reads "
                    "TFF's file if --data_dir has it, or without --data_dir, and the settings fit "
                    "it, else the text, from which TFF's 715 roles cannot be made but 661 can."
                ),
                source="FedOpt, Shakespeare: TFF's file",
                choices=("auto", "tff", "text"),
            ),
            Hparam(
                name="roles",
                default="tff",
                help=(
                    "Rule by which a role is a client: `tff` (22 plays under six titles, two "
                    "speeches or more), `leaf` (1,129 roles of more than 80 characters and three "
                    "lines or more) or `mcmahan` (1,146 roles of three lines or more)."
                ),
                source="FedOpt, Shakespeare; AdaFed and FedCAda: leaf",
                choices=("tff", "leaf", "mcmahan"),
            ),
            Hparam(
                name="examples",
                default="sequences",
                help=(
                    "`sequences` cuts speeches into 80 characters and predicts the next after each "
                    "of them (90 tokens, padding masked); `windows` takes every 80 characters of a "
                    "role and predicts the one after them (LEAF's 80 characters)."
                ),
                source="FedOpt, Shakespeare; AdaFed and FedCAda: windows",
                choices=("sequences", "windows"),
            ),
            Hparam(
                name="num_layers",
                default=2,
                help="Number of LSTM layers of 256 units.",
                source="FedOpt Table 5; AdaFed's second setup and FedCAda: 1",
                minimum=1,
                maximum=100,
            ),
            Hparam(
                name="num_clients",
                default=None,
                type=int,
                help="Number of roles, drawn at random; not set: all.",
                source="FedOpt; AdaFed: 31, and 20 in its second setup",
                minimum=1,
            ),
            Hparam(
                name="min_examples",
                default=None,
                type=int,
                help="Fewest examples, train and test, of a role that may be drawn; not set: 1.",
                source="FedOpt; AdaFed's second setup: 10000",
                minimum=1,
            ),
            Hparam(
                name="num_heldout_clients",
                default=0,
                help=(
                    "Number of further roles, drawn at random, whose examples are the central "
                    "test; 0: the central test is all clients' test examples together."
                ),
                source="FedOpt; FedCAda: 20",
                minimum=0,
            ),
            Hparam(
                name="test_fraction",
                only_with=("source", ("auto", "text")),
                default=None,
                type=float,
                help=(
                    "Share of a role's speeches (of its text, with windows) that is its test "
                    "split, the last in the play; only with the play text, where not set means "
                    "0.2. In TFF's file it is 2,356 of 18,424 speeches."
                ),
                source="McMahan et al. 2017: 80/20 by time; FedCAda: 0.25",
                minimum=0,
                maximum=1,
                exclusive_maximum=True,
            ),
            _partition_seed("the draw of roles"),
            _text_init("keras", "FedOpt (TFF); AdaFed and FedCAda: PyTorch", "He's normal rule"),
        ),
    )
)


register(
    TaskSpec(
        name="clothing1m",
        summary=(
            "A million pictures of clothes with noisy labels, in FedCorr's setting: ResNet-50 from "
            "ImageNet's weights (23,563,278 trainable parameters)."
        ),
        loader="tasks.datasets.clothing1m:load",
        preparer="tasks.datasets.clothing1m:prepare",
        clients=_generated,
        hparams=(
            Hparam(
                name="weights",
                default=None,
                type=str,
                help=(
                    "Keras's HDF5 file of ResNet-50's ImageNet weights, with or without a last "
                    "layer; not set: the task refuses to run, but with --use_synthetic_data, where "
                    "all weights are drawn at random. Batch normalisation keeps the file's "
                    "statistics; its scale and offset are trained."
                ),
                source="AdaFed Table 19, FedCorr: pretrained ResNet-50",
            ),
            Hparam(
                name="partition",
                default="skewed",
                help=(
                    "`skewed`: a client has each kind of clothes with a probability, and gets a "
                    "Dirichlet share of it; `iid`: equal sizes at random."
                ),
                source="FedCorr, Clothing1M",
                choices=("skewed", "iid"),
            ),
            Hparam(
                name="num_clients",
                default=500,
                help="Number of clients.",
                source="FedCorr, Clothing1M",
                minimum=1,
                maximum=_MAX_CLIENTS,
            ),
            Hparam(
                name="class_probability",
                only_with=("partition", ("skewed",)),
                default=None,
                type=float,
                help=(
                    "Probability p that a client has a kind; only with partition=skewed, where not "
                    "set means 0.7."
                ),
                source="FedCorr's released code",
                minimum=0,
                maximum=1,
                exclusive_minimum=True,
            ),
            Hparam(
                name="alpha",
                only_with=("partition", ("skewed",)),
                default=None,
                type=float,
                help=(
                    "Concentration of the clients' shares of a kind; only with partition=skewed, "
                    "where not set means 10."
                ),
                source="FedCorr's released code",
                minimum=0,
                exclusive_minimum=True,
            ),
            _partition_seed("the partition"),
            Hparam(
                name="init",
                default="torch",
                help=(
                    "Initial weights of the last layer: `torch` draws weights and biases uniformly "
                    "from ±1/sqrt(fan_in); `keras` draws weights by Glorot's uniform rule and "
                    "starts biases at 0."
                ),
                source="FedCorr (PyTorch)",
                choices=("torch", "keras"),
            ),
        ),
    )
)

register(
    TaskSpec(
        name="sent140",
        summary=(
            "Glad or sad tweets by account (LEAF): AdaFedAdam's two LSTM layers on frozen word "
            "vectors (241,002 parameters)."
        ),
        loader="tasks.datasets.sent140:load",
        preparer="tasks.datasets.sent140:prepare",
        hparams=(
            Hparam(
                name="source",
                default="auto",
                help=(
                    "`leaf` reads LEAF's JSON files or what tasks.prepare made of them, `lines` a "
                    "file with a JSON object (client, label, text) a tweet, a tenth of LEAF's set; "
                    "`auto` reads LEAF's if --data_dir has them, else that."
                ),
                source="AdaFedAdam, Sent140: LEAF",
                choices=("auto", "leaf", "lines"),
            ),
            Hparam(
                name="min_examples",
                default=None,
                type=int,
                help=(
                    "Fewest tweets, train and test, of an account that is a client; not set: 1. "
                    "AdaFedAdam has 697 accounts and does not say by which rule: in the full set "
                    "877 accounts have more than 50 tweets, 604 more than 60."
                ),
                source="choice",
                minimum=1,
            ),
            Hparam(
                name="split",
                default="local",
                help=(
                    "`local` splits each client's tweets, train and test of the source together, "
                    "at random; `source` keeps the split that the files have."
                ),
                source="AdaFedAdam: local 80/20 split, drawn before training",
                choices=("local", "source"),
            ),
            Hparam(
                name="test_fraction",
                only_with=("split", ("local",)),
                default=None,
                type=float,
                help=(
                    "Share of each client's tweets that is its test split; only with split=local, "
                    "where not set means 0.2; 0: clients have no tests."
                ),
                source="AdaFedAdam: local 80/20 split",
                minimum=0,
                maximum=1,
                exclusive_maximum=True,
            ),
            Hparam(
                name="embedding",
                default="glove",
                help=(
                    "`glove` reads GloVe's vectors of 300 numbers from a file and freezes them; "
                    "`trained` starts from random ones and trains them with the rest."
                ),
                source="AdaFedAdam, Sent140",
                choices=("glove", "trained"),
            ),
            Hparam(
                name="embedding_file",
                only_with=("embedding", ("glove",)),
                default=None,
                type=str,
                help=(
                    "File with a word and 300 numbers a line; only with embedding=glove, where not "
                    "set means glove.6B.300d.txt in --data_dir."
                ),
                source="choice",
            ),
            Hparam(
                name="vocab_size",
                only_with=("embedding", ("trained",)),
                default=None,
                type=int,
                help=(
                    "Number of words, those that most accounts have in the training tweets; only "
                    "with embedding=trained, where not set means 5000. With embedding=glove it is "
                    "all words that have a vector."
                ),
                source="choice",
                minimum=1,
                maximum=1_000_000,
            ),
            _partition_seed("the accounts' train/test splits"),
            _text_init("torch", "AdaFedAdam (PyTorch)"),
        ),
    )
)


def _stackoverflow(*own: Hparam) -> tuple[Hparam, ...]:
    return (
        Hparam(
            name="vocab_size",
            default=10_000,
            help="Number of words, those that most users have; all others count as one word.",
            source="FedOpt, Stack Overflow",
            minimum=1,
            maximum=1_000_000,
        ),
        *own,
        Hparam(
            name="max_examples",
            default=1000,
            help="Most sentences of a user, the first in TFF's file.",
            source="FedOpt, Stack Overflow",
            minimum=1,
        ),
        Hparam(
            name="num_test_examples",
            default=10_000,
            help=(
                "Test sentences in the central test: those of users drawn at random from TFF's "
                "test split, which has 16,586,035."
            ),
            source="FedOpt, Stack Overflow",
            minimum=1,
        ),
        _partition_seed("the draw of test sentences"),
    )


register(
    TaskSpec(
        name="stackoverflow_word",
        summary=(
            "Next word in sentences of 342,477 users of Stack Overflow: FedOpt's LSTM "
            "(4,050,748 parameters)."
        ),
        loader="tasks.datasets.stackoverflow:load_word",
        preparer="tasks.datasets.stackoverflow:prepare",
        clients=_at_most(342_477, 10),
        hparams=(*_stackoverflow(), _text_init("keras", "FedOpt (TFF)")),
    )
)

register(
    TaskSpec(
        name="stackoverflow_tag",
        summary=(
            "Tags of posts of 342,477 users of Stack Overflow: FedOpt's logistic regression on "
            "bags of words (5,000,500 parameters)."
        ),
        loader="tasks.datasets.stackoverflow:load_tag",
        preparer="tasks.datasets.stackoverflow:prepare",
        clients=_at_most(342_477, 10),
        hparams=(
            *_stackoverflow(
                Hparam(
                    name="num_tags",
                    default=500,
                    help="Number of tags, those that most users have.",
                    source="FedOpt, Stack Overflow",
                    minimum=1,
                    maximum=100_000,
                )
            ),
            _init("keras", "FedOpt (TFF)"),
        ),
    )
)

register(
    TaskSpec(
        name="stackexchange",
        summary=(
            "360 users of Math Educators, a small stand-in for Stack Overflow: FedOpt's next-word "
            "or tag prediction."
        ),
        loader="tasks.datasets.stackexchange:load",
        clients=_at_most(360, 10),
        hparams=(
            Hparam(
                name="kind",
                default="tag",
                help=(
                    "`tag` predicts a post's tags as stackoverflow_tag does, `word` the next word "
                    "as stackoverflow_word does. This task stands in for them and is not them."
                ),
                source="choice",
                choices=("tag", "word"),
            ),
            Hparam(
                name="vocab_size",
                default=2000,
                help=(
                    "Number of words, those that most users have in the training posts; they make "
                    "up 90 % of the text."
                ),
                source="choice (FedOpt, Stack Overflow: 10000)",
                minimum=1,
                maximum=1_000_000,
            ),
            Hparam(
                name="num_tags",
                only_with=("kind", ("tag",)),
                default=None,
                type=int,
                help=(
                    "Number of tags, those that most users have in the training posts; only with "
                    "kind=tag, where not set means 100."
                ),
                source="choice (FedOpt, Stack Overflow: 500)",
                minimum=1,
                maximum=100_000,
            ),
            Hparam(
                name="test_fraction",
                default=0.2,
                help="Share of each user's posts that is its test split; 0: users have no tests.",
                source="choice, after AdaFedAdam's local 80/20 split",
                minimum=0,
                maximum=1,
                exclusive_maximum=True,
            ),
            _partition_seed("the users' train/test splits"),
            _text_init("keras", "FedOpt (TFF)"),
        ),
    )
)


def _images(
    *,
    partitions: Sequence[str],
    partition: str,
    partition_source: str,
    num_clients: int,
    num_clients_source: str,
    alpha: float,
    alpha_source: str,
    whole_image: int,
    distorted: bool,
    validation: str,
    init: Hparam,
    own: Sequence[Hparam] = (),
) -> tuple[Hparam, ...]:
    """Returns the settings of a task of colour images.

    Args:
      partitions: Partitions on offer.
      partition: The default.
      partition_source: Where it is from.
      num_clients: Default number of clients.
      num_clients_source: Where it is from.
      alpha: Default concentration.
      alpha_source: Where it is from.
      whole_image: Height and width of an image.
      distorted: Whether resnet18 crops and flips at random by default.
      validation: What is said of the papers' validation images.
      init: The setting of initial weights.
      own: Settings that only this task has.
    """
    resnet_crop = f"24 with model=resnet18, else {whole_image}" if distorted else f"{whole_image}"
    resnet_distort = "true with model=resnet18, else false" if distorted else "false"
    ways = {
        "auto": "`auto` is `tff` if --data_dir has TFF's file, or without --data_dir, else "
        "`pachinko`",
        "tff": "`tff` takes TFF's own 500 clients and tests its 100 test clients",
        "pachinko": "`pachinko` draws clients' examples by coarse, then fine labels",
        "multinomial": "`multinomial` draws each client's examples from label proportions of its "
        "own, Dir(alpha), in equal sizes",
        "dirichlet": "`dirichlet` deals each class in proportions drawn from a Dirichlet "
        "distribution over clients, so that sizes are unequal",
        "iid": "`iid` deals at random in equal sizes",
        "shards": "`shards` sorts by label, cuts into equal shards and deals these",
        "classes": "`classes` gives each client some classes at random",
    }

    def beside(*ways_that_use_it):
        return "partition", tuple(p for p in partitions if p in ways_that_use_it)

    return (
        Hparam(
            name="partition",
            default=partition,
            help=f"How training images are dealt: {'; '.join(ways[p] for p in partitions)}.",
            source=partition_source,
            choices=tuple(partitions),
        ),
        Hparam(
            name="num_clients",
            only_with=beside(
                "auto", "pachinko", "multinomial", "dirichlet", "iid", "shards", "classes"
            ),
            default=None,
            type=int,
            help="Number of clients; "
            + ("not with partition=tff, elsewhere " if "tff" in partitions else "")
            + f"not set means {num_clients}.",
            source=num_clients_source,
            minimum=1,
            maximum=_MAX_CLIENTS,
        ),
        Hparam(
            name="alpha",
            only_with=beside("auto", "pachinko", "multinomial", "dirichlet"),
            default=None,
            type=float,
            help=(
                "Concentration of the Dirichlet distribution, smaller is less even; only with a "
                f"partition that draws from one, where not set means {alpha:g}."
            ),
            source=alpha_source,
            minimum=0,
            exclusive_minimum=True,
        ),
        *own,
        Hparam(
            name="size_sigma",
            only_with=beside("auto", "pachinko", "multinomial"),
            default=None,
            type=float,
            help=(
                "Standard deviation of the logarithms of clients' sizes; only with "
                "partition=multinomial or pachinko, where not set means 0, equal sizes."
            ),
            source="choice; FedOpt: equal sizes",
            minimum=0,
        ),
        _MIN_SHARE,
        Hparam(
            name="shards_per_client",
            only_with=beside("shards"),
            default=None,
            type=int,
            help="Shards of a client; only with partition=shards, where not set means 2.",
            source="AdaFed, CIFAR-10 setup 1 (100 clients)",
            minimum=1,
        ),
        Hparam(
            name="classes_per_client",
            only_with=beside("classes"),
            default=None,
            type=int,
            help="Classes of a client; only with partition=classes, where not set means 2.",
            source="choice; AdaFed's skewed FEMNIST: 5 of 10",
            minimum=1,
        ),
        Hparam(
            name="client_tests",
            default="none",
            help=(
                "Clients' own tests: `none`; `split` takes a share of each client's images; "
                "`official` deals the official test images so that each client's have the label "
                "distribution of its training images. The official test images are the central "
                "test in any case."
            ),
            source="FedOpt: none; AdaFedAdam and FedCAda: split; AdaFed does not say",
            choices=("none", "split", "official"),
        ),
        Hparam(
            name="test_fraction",
            only_with=("client_tests", ("split",)),
            default=None,
            type=float,
            help=(
                "Share of each client's images that is its own test split; only with "
                "client_tests=split, where not set means 0.2."
            ),
            source="AdaFedAdam: 80/20; FedCAda: 75/25",
            minimum=0,
            maximum=1,
            exclusive_minimum=True,
            exclusive_maximum=True,
        ),
        Hparam(
            name="num_validation",
            default=0,
            help=f"Training images held out at random, of which no client has any. {validation}",
            source="FedOpt, AdaFedAdam, FedCAda: none",
            minimum=0,
        ),
        Hparam(
            name="central_test",
            default="official",
            help=(
                "`official`: the official test images; `validation`: the images held out, to "
                "choose settings by."
            ),
            source="FedOpt",
            choices=("official", "validation"),
        ),
        Hparam(
            name="model",
            default="resnet18",
            help=(
                "`resnet18` with group normalisation; `vgg11`, and `vgg11_dense` with FedNova's "
                "two further dense layers and dropout; `three_convolutions`, as large as the "
                "network in AdaFedAdam's released code; `simple_cnn`, FedCAda's three convolutions "
                "and two dense layers; `mlp`, AdaFed's two hidden layers of 200."
            ),
            source="FedOpt, AdaFed; AdaFedAdam: vgg11; FedCAda: simple_cnn and resnet18",
            choices=("resnet18", "vgg11", "vgg11_dense", "three_convolutions", "simple_cnn", "mlp"),
        ),
        Hparam(
            name="groups",
            only_with=("model", ("resnet18",)),
            default=None,
            type=int,
            help=(
                "Groups of ResNet-18's normalisations, a divisor of 64; not set means 2, as FedOpt "
                "says. TFF's model today has 32."
            ),
            source="FedOpt, App. C.1",
            minimum=1,
            maximum=64,
        ),
        Hparam(
            name="strides",
            only_with=("model", ("resnet18",)),
            default=None,
            type=str,
            help=(
                "`usual`: ResNet-18's stages two to four halve height and width; `tff`: they do "
                "not, as in TFF's code, which FedOpt's numbers come from and which costs 14 times "
                "as much. Only with model=resnet18, where not set means usual."
            ),
            source="FedOpt names ResNet-18; TFF, resnet_models.py: tff",
            choices=("usual", "tff"),
        ),
        Hparam(
            name="l2",
            only_with=("model", ("resnet18",)),
            default=None,
            type=float,
            help=(
                "Factor of the squared weights of ResNet-18's convolutions and dense layer, which "
                "is part of the loss in training and in tests; not set means 0, as FedOpt names "
                "none. TFF's model has 1e-4."
            ),
            source="FedOpt; TFF, resnet_models.py: 1e-4",
            minimum=0,
        ),
        Hparam(
            name="crop",
            default=None,
            type=int,
            help=(
                "Height and width of the square that is cut out of an image: in tests in the "
                f"centre, in training at random with distort; not set means {resnet_crop}."
            ),
            source="FedOpt, App. C.1: 24; AdaFedAdam, AdaFed and FedCAda do not say",
            minimum=1,
        ),
        Hparam(
            name="distort",
            default=None,
            type=bool,
            help=(
                "Whether training cuts the square out at random and flips it left to right half "
                "of the time, anew in every step. FedOpt does; TFF's task leaves it off by "
                f"default; not set means {resnet_distort}."
            ),
            source="FedOpt, App. C.1: true; AdaFedAdam, AdaFed and FedCAda do not say",
        ),
        Hparam(
            name="scaling",
            default="standardize",
            help=(
                "`standardize` subtracts each image's own mean and divides by its own standard "
                "deviation; `unit` divides bytes by 255."
            ),
            source="FedOpt, App. C.1",
            choices=("standardize", "unit"),
        ),
        _partition_seed("the partition, the validation images and the clients' tests"),
        init,
    )


# Below, pooling leaves no pixel.
_SMALLEST_CROP = {"vgg11": 32, "vgg11_dense": 32, "three_convolutions": 8, "simple_cnn": 18}


def check_images(task, size, settings):
    """Refuses settings of colour images that do not go together.

    Args:
      task: Name of the task.
      size: Height and width of an image.
      settings: The settings by name; `partition=auto` allows all that one of its meanings does.

    Raises:
      HparamError: If they do not go together.
    """
    if settings["partition"] == "tff" and (
        settings["client_tests"] != "none" or settings["num_validation"]
    ):
        raise HparamError(
            f"{task}: client_tests and num_validation are not used with partition=tff."
        )
    if settings["central_test"] == "validation" and not settings["num_validation"]:
        raise HparamError(f"{task}: central_test=validation needs num_validation.")
    crop, model = settings["crop"], settings["model"]
    if crop is not None and crop > size:
        raise HparamError(f"{task}: crop={crop} is more than {size} pixels.")
    if crop is not None and crop < _SMALLEST_CROP.get(model, 1):
        raise HparamError(
            f"{task}: model={model} needs a crop of at least {_SMALLEST_CROP[model]} pixels."
        )
    if 64 % (settings["groups"] or 1):
        raise HparamError(f"{task}: groups={settings['groups']} must divide 64.")


def _cifar100_clients(settings, synthetic):
    if settings["partition"] == "tff" or (settings["partition"] == "auto" and not synthetic):
        return Clients(settings["num_clients"] or 500)
    return _generated(settings, synthetic, default=500)


register(
    TaskSpec(
        name="cifar10_image",
        summary="CIFAR-10 among generated clients: FedOpt's ResNet-18 (11,181,642 parameters), "
        "VGG11, CNNs, MLP.",
        loader="tasks.images:load_cifar10",
        check=functools.partial(check_images, "cifar10_image", 32),
        clients=functools.partial(_generated, default=500),
        hparams=_images(
            partitions=("multinomial", "dirichlet", "iid", "shards", "classes"),
            partition="multinomial",
            partition_source="FedOpt; AdaFedAdam, FedCAda, AdaFed setup 2: dirichlet; AdaFed "
            "setup 1: shards",
            num_clients=500,
            num_clients_source="FedOpt; AdaFedAdam: 16; AdaFed: 100 and 10; FedCAda: 20 and 100",
            alpha=0.1,
            alpha_source="FedOpt, AdaFedAdam, FedCAda; AdaFed setup 2: 0.5",
            whole_image=32,
            distorted=True,
            validation="AdaFed trains on 40,000 images, which 10000 leaves.",
            init=_init("keras", "FedOpt (TFF); AdaFedAdam, AdaFed and FedCAda: torch"),
        ),
    )
)

register(
    TaskSpec(
        name="cifar100_image",
        summary="CIFAR-100 among TFF's clients or generated ones: FedOpt's ResNet-18 "
        "(11,227,812 parameters).",
        loader="tasks.images:load_cifar100",
        check=functools.partial(check_images, "cifar100_image", 32),
        clients=_cifar100_clients,
        hparams=_images(
            partitions=(
                "auto",
                "tff",
                "pachinko",
                "multinomial",
                "dirichlet",
                "iid",
                "shards",
                "classes",
            ),
            partition="auto",
            partition_source="FedOpt and FedDA: TFF's file, made by Pachinko allocation; AdaFed: "
            "dirichlet",
            num_clients=500,
            num_clients_source="FedOpt; AdaFed: 10 and 50",
            alpha=0.1,
            alpha_source="FedOpt; AdaFed: 0.5 and 0.05",
            whole_image=32,
            distorted=True,
            validation="AdaFed trains on 40,000 images, which 10000 leaves.",
            init=_init("keras", "FedOpt (TFF); AdaFedAdam, AdaFed and FedCAda: torch"),
            own=(
                Hparam(
                    name="beta",
                    only_with=("partition", ("auto", "pachinko")),
                    default=None,
                    type=float,
                    help=(
                        "Concentration over the fine labels of a coarse one; only with "
                        "partition=pachinko, where not set means 10."
                    ),
                    source="FedOpt, App. F",
                    minimum=0,
                    exclusive_minimum=True,
                ),
            ),
        ),
    )
)

register(
    TaskSpec(
        name="cinic10",
        summary="CINIC-10, images of CIFAR-10 and ImageNet in CIFAR-10's classes, among generated "
        "clients: AdaFed's ResNet-18 (11,181,642 parameters).",
        loader="tasks.images:load_cinic10",
        preparer="tasks.images:prepare_cinic10",
        check=functools.partial(check_images, "cinic10", 32),
        clients=functools.partial(_generated, default=50),
        hparams=_images(
            partitions=("multinomial", "dirichlet", "iid", "shards", "classes"),
            partition="dirichlet",
            partition_source="AdaFed, CINIC-10",
            num_clients=50,
            num_clients_source="AdaFed, CINIC-10",
            alpha=0.5,
            alpha_source="AdaFed, CINIC-10",
            whole_image=32,
            distorted=False,
            validation="`valid`, another 90,000 images, is not read without with_valid.",
            init=_init("torch", "AdaFed (PyTorch)"),
            own=(
                Hparam(
                    name="with_valid",
                    default=False,
                    help="Whether the 90,000 images of `valid` are training images as well.",
                    source="choice; AdaFed does not say which of 270,000 it trains on",
                ),
            ),
        ),
    )
)

register(
    TaskSpec(
        name="tiny_imagenet",
        summary="Tiny ImageNet, 200 classes of 64x64 images, among generated clients: AdaFed's "
        "ResNet-18 (11,279,112 parameters).",
        loader="tasks.images:load_tiny_imagenet",
        preparer="tasks.images:prepare_tiny_imagenet",
        check=functools.partial(check_images, "tiny_imagenet", 64),
        clients=functools.partial(_generated, default=20),
        hparams=_images(
            partitions=("multinomial", "dirichlet", "iid", "shards", "classes"),
            partition="dirichlet",
            partition_source="AdaFed, TinyImageNet",
            num_clients=20,
            num_clients_source="AdaFed, TinyImageNet",
            alpha=0.05,
            alpha_source="AdaFed, TinyImageNet",
            whole_image=64,
            distorted=False,
            validation="The official test images have no labels: where these settings say "
            "official test images, the 10,000 of `val` are meant.",
            init=_init("torch", "AdaFed (PyTorch)"),
        ),
    )
)
