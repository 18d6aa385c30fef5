"""The suite's own methods: names, settings, defaults and sources. Knows nothing of TensorFlow."""

import dataclasses

from hparams import Hparam
from tff_algos.registry import MethodSpec, RoundPlan, register

_FEDOPT_PAPER = "Reddi, Charles, et al., Adaptive Federated Optimization, arXiv 2003.00295"

_VARIANT = Hparam(
    "variant",
    "released",
    "Which form of the adaptive server optimizers: released, the code that produced the published "
    "numbers (accumulators start at 0, bias correction in Adam and Yogi, v fed with the raw "
    "pseudo-gradient); algorithm2, as printed (v starts at tau^2, no bias correction, v fed with "
    "the moving average).",
    source="released code of the paper: its Tables 1, 8, 9",
    choices=("released", "algorithm2"),
    flag="fedopt_variant",
)
_TAU = Hparam(
    "tau",
    1e-3,
    "Degree of adaptivity tau, added outside the root: smaller is more adaptive.",
    source="Adaptive Federated Optimization, section 5.3 (recommended single value)",
    minimum=0.0,
    exclusive_minimum=True,
)


def _decay(name, default, symbol):
    return Hparam(
        name,
        default,
        f"Decay {symbol} of the server's moving average.",
        source="Adaptive Federated Optimization, section 5.2 (0.9, 0.99)",
        minimum=0.0,
        maximum=1.0,
        exclusive_maximum=True,
    )


_MOMENTS = (_decay("beta1", 0.9, "beta_1"), _decay("beta2", 0.99, "beta_2"))


def _fedopt(name, summary, hparams=(), server_learning_rate=None):
    register(
        MethodSpec(
            name=name,
            summary=summary,
            paper=_FEDOPT_PAPER,
            builder=f"tff_algos.methods.fedopt:build_{name}",
            hparams=hparams,
            server_learning_rate=server_learning_rate,
            keeps_client_optimizer=True,
        )
    )


_fedopt("fedavg", "Federated averaging: the server takes the mean client update.", (), 1.0)
_fedopt(
    "fedavgm",
    "Federated averaging with server momentum.",
    (
        Hparam(
            "momentum",
            0.9,
            "Server momentum: u <- momentum * u + g, no dampening, no Nesterov.",
            source="Adaptive Federated Optimization, section 5.2",
            minimum=0.0,
            maximum=1.0,
            exclusive_maximum=True,
        ),
    ),
    1.0,
)
_fedopt("fedadagrad", "Adagrad on the server.", (_TAU, _VARIANT))
_fedopt("fedadam", "Adam on the server.", (*_MOMENTS, _TAU, _VARIANT))
_fedopt("fedyogi", "Yogi on the server.", (*_MOMENTS, _TAU, _VARIANT))


def _centralized_plan(settings, round_num, total_rounds):
    steps = settings["steps_per_round"]
    return RoundPlan("pooled", local_steps=steps, first_step=steps and round_num * steps)


register(
    MethodSpec(
        name="centralized",
        summary="One optimizer on the pooled, shuffled examples of all clients: the yardstick.",
        paper=_FEDOPT_PAPER,
        builder="tff_algos.methods.centralized:build_centralized",
        hparams=(
            Hparam(
                "steps_per_round",
                None,
                "Minibatches of a round, which goes on in the shuffled epoch where the last one "
                "stopped. Unset: a round is client_epochs_per_round whole epochs.",
                source="Adaptive Federated Optimization, App. E.6, counts epochs",
                type=int,
                minimum=1,
            ),
        ),
        server_learning_rate=1.0,
        has_server_step=False,
        client_weighting=None,
        plan=_centralized_plan,
        draws_clients=False,
    )
)


def _unit(name, default, help_text, source, minimum=0.0):
    """A setting in [0, 1)."""
    return Hparam(
        name, default, help_text, source, minimum=minimum, maximum=1.0, exclusive_maximum=True
    )


def _positive(name, default, help_text, source):
    return Hparam(name, default, help_text, source, minimum=0.0, exclusive_minimum=True)


def _shared(prefix, *hparams):
    """Settings whose flags are `--<prefix>_<name>` in every method of a family."""
    return tuple(dataclasses.replace(h, flag=f"{prefix}_{h.name}") for h in hparams)


def _proximal(default, source):
    return Hparam(
        "mu",
        default,
        "Strength mu of the proximal term: mu (x_k - x) is added to every minibatch gradient.",
        source,
        minimum=0.0,
    )


register(
    MethodSpec(
        name="fedprox",
        summary="Federated averaging whose clients are held near the broadcast model.",
        paper="Li et al., Federated Optimization in Heterogeneous Networks, arXiv 1812.06127",
        builder="tff_algos.methods.fedprox:build_fedprox",
        keeps_client_optimizer=True,
        hparams=(_proximal(0.01, "choice, within AdaFedAdam's grid 0.001 to 1"),),
        server_learning_rate=1.0,
    )
)
register(
    MethodSpec(
        name="fednova",
        summary="Client updates are divided by the weight of their local steps.",
        paper="Wang et al., Tackling the Objective Inconsistency Problem, arXiv 2007.07481",
        builder="tff_algos.methods.fednova:build_fednova",
        keeps_client_optimizer=True,
        hparams=(_proximal(0.0, "FedNova, section 6: none"),),
        server_learning_rate=1.0,
        client_optimizers=("sgd", "sgdm", "nesterov"),
    )
)

_FEDCADA = "FedCAda"
register(
    MethodSpec(
        name="fedcada",
        summary="Clients run Adam from the server's moments, with an adjusted bias correction.",
        paper="Zhou et al., FedCAda: Adaptive Client-Side Optimization, arXiv 2405.11811",
        builder="tff_algos.methods.fedcada:build_fedcada",
        hparams=(
            _unit("beta1", 0.9, "Decay beta_1 of the first moment.", f"{_FEDCADA}, section 4.1"),
            _unit("beta2", 0.99, "Decay beta_2 of the second moment.", f"{_FEDCADA}, section 4.1"),
            _positive("epsilon", 1e-8, "Epsilon, added outside the root.", "choice: not given"),
            Hparam(
                "adjustment",
                "1",
                "Adjustment function phi of z = beta^t: option 1 is z, 2 is z^2, 3 is sin z, 4 is "
                "the root of z; none leaves the moments uncorrected.",
                source=f"{_FEDCADA}, main tables (its Table 3 has option 2 in front)",
                choices=("1", "2", "3", "4", "none"),
                flag="fedcada_option",
            ),
            Hparam(
                "t_unit",
                "round",
                "What t counts in beta^t: rounds from 1, or local steps.",
                source=f"{_FEDCADA}, Fig. 3",
                choices=("round", "step"),
            ),
        ),
        server_learning_rate=1.0,
        client_weighting="uniform",
        client_optimizers=("sgd",),
    )
)


def _fedda_plan(settings, round_num, total_rounds):
    stable = round(settings["stabilization"] * total_rounds)
    if round_num >= total_rounds - stable:
        return RoundPlan(batches="full_batch", local_steps=1)
    return RoundPlan(local_steps=settings["local_steps"])


_FEDDA = "FedDA"
_FEDDA_EPSILON = _positive(
    "epsilon",
    0.1,
    "Fuzz factor epsilon, added outside the root.",
    f"{_FEDDA}, Table 12 (CIFAR-100, EMNIST; Stack Overflow: 1e-5)",
)
for _name, _summary, _own in (
    ("fedda_sgdm", "Clients send sums of moments; the server applies the momentum.", ()),
    (
        "fedda_adam",
        "FedDA with Adam on the server.",
        (
            _unit("beta2", 0.99, "Decay beta_2 of the second moment.", f"{_FEDDA}, Table 12"),
            _FEDDA_EPSILON,
            Hparam(
                "bias_steps",
                False,
                "Whether bias correction counts moment updates (local_steps a round), not rounds.",
                source=f"{_FEDDA}, Algorithm 2: rounds",
            ),
        ),
    ),
    ("fedda_adagrad", "FedDA with AdaGrad on the server.", (_FEDDA_EPSILON,)),
):
    register(
        MethodSpec(
            name=_name,
            summary=_summary,
            paper="Jin et al., Accelerated Federated Learning with Decoupled Adaptive "
            "Optimization, arXiv 2207.07223",
            builder=f"tff_algos.methods.fedda:build_{_name}",
            hparams=_shared(
                "fedda",
                _unit("beta1", 0.9, "Decay beta_1 of the momentum m.", f"{_FEDDA}, Table 12"),
                *_own,
                _proximal(0.0, f"{_FEDDA}: none"),
                Hparam(
                    "average_p",
                    False,
                    "Whether the sum P_k of a client's moments is divided by its local steps.",
                    source=f"{_FEDDA}, Algorithm 1: not",
                ),
                Hparam(
                    "local_steps",
                    10,
                    "Minibatch steps T of a client in a round, whatever the epochs.",
                    source=f"{_FEDDA}, Table 12 (EMNIST; CIFAR-100: 5)",
                    minimum=1,
                ),
                _unit(
                    "stabilization",
                    0.05,
                    "Last part of the rounds that take one step with the full local gradient.",
                    "choice: the paper gives no length",
                ),
            ),
            client_optimizers=("sgd",),
            plan=_fedda_plan,
        )
    )


def _decays(beta1, beta2, source):
    return (
        _unit("beta1", beta1, "Decay beta_1 of the first moment.", source),
        _unit("beta2", beta2, "Decay beta_2 of the second moment.", source),
    )


register(
    MethodSpec(
        name="fedams",
        summary="AMSGrad on the server.",
        paper="Wang et al., Communication-Efficient Adaptive Federated Learning, arXiv 2205.02719",
        builder="tff_algos.methods.fedams:build_fedams",
        hparams=(
            *_decays(0.9, 0.99, "FedAMS, README of the released code"),
            _positive(
                "epsilon_max",
                1e-3,
                "Where the largest second moment v-hat starts, below which it never is (epsilon).",
                "FedAMS, README of the released code",
            ),
            Hparam(
                "epsilon",
                0.0,
                "What is added to the root of v-hat.",
                source="FedAMS, README of the released code",
                minimum=0.0,
            ),
            Hparam(
                "bias_correction",
                True,
                "Whether moments are corrected for their bias, as in the released code; the paper "
                "does not.",
                source="FedAMS, the released code",
            ),
        ),
        server_learning_rate=1.0,
        client_weighting="uniform",
    )
)
register(
    MethodSpec(
        name="fedsps",
        summary="Clients choose each step's length by a stochastic Polyak rule.",
        paper="Mukherjee et al., Locally Adaptive Federated Learning, arXiv 2307.06306",
        builder="tff_algos.methods.fedsps:build_fedsps",
        hparams=(
            _positive(
                "c",
                0.5,
                "Divisor c of the Polyak step; the client learning rate is its bound gamma_b.",
                "choice within FedCAda's grid 0.1, 0.2, 0.5, 1",
            ),
            Hparam(
                "lower_bound",
                0.0,
                "Lower bound of the minibatch loss (l*).",
                source="FedSPS: 0 for losses that are never negative",
            ),
            Hparam(
                "smoothing",
                False,
                "Whether, after the first step of a round, gamma_b is 2^(|b|/n_k) times the step "
                "before.",
                source="choice: the paper uses it for models that are not convex",
            ),
        ),
        server_learning_rate=1.0,
        client_weighting="uniform",
        client_optimizers=("sgd",),
    )
)
register(
    MethodSpec(
        name="adaalter",
        summary="Clients run Adagrad with the server's accumulator, which is averaged.",
        paper="Xie et al., Local AdaAlter, arXiv 1911.09030",
        builder="tff_algos.methods.adaalter:build_adaalter",
        hparams=(
            _positive("epsilon", 1.0, "Epsilon: step j adds j epsilon^2 in the root.", "AdaAlter"),
            _positive("b0", 1.0, "Root b_0 of the accumulator's first value.", "AdaAlter"),
        ),
        server_learning_rate=1.0,
        client_optimizers=("sgd",),
    )
)
register(
    MethodSpec(
        name="mfl",
        summary="Clients run momentum whose buffer is averaged along with the model.",
        paper="Liu et al., Accelerating Federated Learning via Momentum, arXiv 1910.03197",
        builder="tff_algos.methods.mfl:build_mfl",
        server_learning_rate=1.0,
        client_optimizers=("sgdm", "sgd", "adagrad", "adam", "adamw", "rmsprop", "yogi"),
    )
)
register(
    MethodSpec(
        name="lookahead",
        summary="A few fast steps on the clients, a part of the way on the server.",
        paper="Zhang et al., Lookahead Optimizer, arXiv 1907.08610",
        builder="tff_algos.methods.lookahead:build_lookahead",
        hparams=(
            Hparam(
                "local_steps",
                5,
                "Minibatch steps k of a client in a round, whatever the epochs.",
                source="Lookahead",
                minimum=1,
            ),
            Hparam(
                "state",
                "reset",
                "What becomes of the client optimizer's state after a round: reset, average over "
                "the cohort, or keep for the client's next one.",
                source="Adaptive Federated Optimization, Algorithm 1: clients keep nothing",
                choices=("reset", "average", "keep"),
            ),
        ),
        server_learning_rate=0.5,
        client_optimizers=("sgdm", "sgd", "adagrad", "adam", "adamw", "rmsprop", "yogi"),
        plan=lambda settings, round_num, total: RoundPlan(local_steps=settings["local_steps"]),
    )
)
register(
    MethodSpec(
        name="mimelite",
        summary="Clients step with the server's optimizer state; full gradients move it.",
        paper="Karimireddy et al., Mime, arXiv 2008.03606",
        builder="tff_algos.methods.mimelite:build_mimelite",
        server_learning_rate=1.0,
        client_optimizers=("sgdm", "sgd", "adagrad", "adam", "adamw", "rmsprop", "yogi"),
    )
)
register(
    MethodSpec(
        name="fedlocal",
        summary="Adaptive optimizers on the clients, with local or joint correction.",
        paper="Wang et al., Local Adaptivity in Federated Learning, arXiv 2106.02305",
        builder="tff_algos.methods.fedlocal:build_fedlocal",
        hparams=(
            Hparam(
                "correction",
                "joint",
                "Whether the server divides by the mean of 1/Q_k (joint) or not (local).",
                source="Local Adaptivity, the released code",
                choices=("joint", "local"),
            ),
        ),
        server_learning_rate=1.0,
        client_optimizers=("adam", "sgd", "sgdm", "adagrad", "rmsprop", "yogi"),
    )
)
register(
    MethodSpec(
        name="stem",
        summary="Clients and server share a momentum direction of gradient differences.",
        paper="Khanduri et al., STEM, arXiv 2106.10435",
        builder="tff_algos.methods.stem:build_stem",
        hparams=(
            Hparam(
                "a",
                0.1,
                "How much of the direction a step forgets (a), for schedule=constant.",
                source="choice of 0.1 and 0.01",
                minimum=0.0,
                maximum=1.0,
            ),
            Hparam(
                "schedule",
                "constant",
                "constant: the client learning rate and a; decay: rate / (w + s)^(1/3) and a = "
                "min(1, c rate^2) after s local steps.",
                source="choice; STEM's analysis has decay",
                choices=("constant", "decay"),
            ),
            _positive("w", 1.0, "Offset w of schedule=decay.", "choice"),
            _positive("c", 1.0, "Factor c of schedule=decay.", "choice"),
        ),
        server_learning_rate=1.0,
        client_weighting="uniform",
        client_optimizers=("sgd",),
    )
)
register(
    MethodSpec(
        name="fedlin",
        summary="Clients correct every gradient by the cohort's, asked for in the same round.",
        paper="Mitra et al., Linear Convergence in Federated Learning, arXiv 2102.07053",
        builder="tff_algos.methods.fedlin:build_fedlin",
        hparams=(
            Hparam(
                "divide_rate",
                True,
                "Whether a client's rate is divided by its local steps (eta_k = eta / tau_k).",
                source="FedLin",
            ),
            Hparam(
                "full_batch",
                False,
                "Whether a local step takes all examples of the client, an epoch being one step.",
                source="choice: the same minibatch for both local gradients",
            ),
        ),
        server_learning_rate=1.0,
        client_optimizers=("sgd",),
        plan=lambda settings, round_num, total: RoundPlan(
            batches="full_batch" if settings["full_batch"] else "minibatch"
        ),
    )
)
register(
    MethodSpec(
        name="fafed",
        summary="Variance-reduced adaptive client steps on a scale that the server fixes.",
        paper="Wu et al., Faster Adaptive Federated Learning, arXiv 2212.00974",
        builder="tff_algos.methods.fafed:build_fafed",
        hparams=(
            Hparam(
                "alpha",
                0.1,
                "How much of the gradient estimate a step forgets (alpha).",
                source="FedCAda's grid 0.1, 0.5, 0.9",
                minimum=0.0,
                maximum=1.0,
            ),
            _unit("beta", 0.99, "Decay beta of the second moment.", "FedCAda"),
            _positive("rho", 0.01, "What is added to the root (rho).", "third-party code"),
        ),
        server_learning_rate=1.0,
        client_weighting="uniform",
        client_optimizers=("sgd",),
    )
)

# --- Fairness methods without client state -------------------------------------------------------

_ADAFEDADAM_PAPER = (
    "Ju, Zhang, Toor, Hellander, Accelerating Fair Federated Learning: Adaptive Federated Adam, "
    "arXiv 2301.09357"
)


def _number(name, default, text, source, **limits):
    return Hparam(name, default, text, source, **limits)


register(
    MethodSpec(
        name="qfedavg",
        summary="q-FedAvg: clients count by the power q of their loss.",
        paper="Li, Sanjabi, Beirami, Smith, Fair Resource Allocation in Federated Learning, "
        "arXiv 1905.10497",
        builder="tff_algos.methods.qfedavg:build_qfedavg",
        keeps_client_optimizer=True,
        hparams=(
            _number(
                "q",
                1.0,
                "Power q of the loss: 0 is uniform averaging, larger is fairer.",
                "AdaFedAdam, Table 5",
                minimum=0.0,
            ),
            Hparam(
                "form",
                "lipschitz",
                "lipschitz: the step is divided by estimates of Lipschitz constants, as in the "
                "paper; reweight: a mean with weights F_k^q, which AdaFedAdam's q-FedAvg rows fit.",
                source="q-FedAvg, Algorithm 2",
                choices=("lipschitz", "reweight"),
            ),
        ),
        server_learning_rate=1.0,
        client_weighting=None,
    )
)
register(
    MethodSpec(
        name="adafedadam",
        summary="AdaFedAdam: FedAdam on normalised updates, steered by their certainty.",
        paper=_ADAFEDADAM_PAPER,
        builder="tff_algos.methods.adafedadam:build_adafedadam",
        keeps_client_optimizer=True,
        hparams=(
            Hparam(
                "profile",
                "paper",
                "paper: Algorithms 1 and 2; released: the authors' code, with "
                "loss_reference=none and lr_scale_warmup=6.",
                source="AdaFedAdam, Algorithms 1 and 2",
                choices=("paper", "released"),
            ),
            _number(
                "alpha",
                1.0,
                "Fairness alpha: a client's weight grows with (F_k(x) / F_k(x0))^alpha.",
                "AdaFedAdam, section 6",
                minimum=0.0,
            ),
            _number(
                "beta1",
                0.9,
                "Decay beta_1 of the server's moving average at certainty C = 1; it is beta_1^C.",
                "Adam",
                minimum=0.0,
                maximum=1.0,
                exclusive_maximum=True,
            ),
            _number(
                "beta2",
                0.999,
                "Decay beta_2 of the server's moving average at certainty C = 1; it is beta_2^C.",
                "Adam",
                minimum=0.0,
                maximum=1.0,
                exclusive_maximum=True,
            ),
            _number(
                "epsilon",
                1e-8,
                "Epsilon, added outside the root.",
                "Adam",
                minimum=0.0,
                exclusive_minimum=True,
            ),
            Hparam(
                "loss_reference",
                None,
                "What F_k(x) is divided by in the weight: initial, F_k at the initial model x0; "
                "none, nothing. Unset: as the profile has it.",
                source="AdaFedAdam, Algorithm 2 (initial); released code (none)",
                type=str,
                choices=("initial", "none"),
            ),
            Hparam(
                "lr_scale_warmup",
                None,
                "Server steps at the start whose learning rate is not scaled by the certainty C. "
                "Unset: as the profile has it.",
                source="AdaFedAdam, Algorithm 1 (0); released code (6)",
                type=int,
                minimum=0,
            ),
            Hparam(
                "grad_sample",
                None,
                "Gradient G and loss L are those of the first minibatches with more than so many "
                "examples, dropout on; 0: of all examples, dropout off. Unset: as the profile has "
                "it.",
                source="AdaFedAdam, Algorithm 2 (0: all); released code (512)",
                type=int,
                minimum=0,
            ),
            _number(
                "certainty_floor",
                0.01,
                "Least certainty C of a round: C <= 0 would have no meaning.",
                "choice",
                minimum=0.0,
                exclusive_minimum=True,
            ),
        ),
        server_learning_rate=1e-3,
    )
)
register(
    MethodSpec(
        name="term",
        summary="TERM: clients count by exp(t F_k).",
        paper="Li, Beirami, Sanjabi, Smith, Tilted Empirical Risk Minimization, arXiv 2007.01162",
        builder="tff_algos.methods.term:build_term",
        hparams=(
            _number(
                "t",
                1.0,
                "Tilt t: 0 is uniform averaging, a large one leaves the worst client only.",
                "AdaFed, App. (grid 0.1, 0.5, 1, 2, 5)",
                minimum=0.0,
            ),
            Hparam(
                "normalizer",
                "softmax",
                "softmax: weights sum to one in every round; running: divided by a running "
                "estimate of the mean exponential, as in the authors' code.",
                source="TERM, objective",
                choices=("softmax", "running"),
            ),
        ),
        server_learning_rate=1.0,
        client_weighting=None,
    )
)
register(
    MethodSpec(
        name="afl",
        summary="AFL: the model for the worst mixture of the clients.",
        paper="Mohri, Sivek, Suresh, Agnostic Federated Learning, arXiv 1902.00146",
        builder="tff_algos.methods.afl:build_afl",
        hparams=(
            _number(
                "gamma_lambda",
                0.1,
                "Step size gamma_lambda of the mixture weights: 0 keeps them uniform.",
                "AdaFed, App. (grid 0.01, 0.05, 0.1, 0.5, 1)",
                minimum=0.0,
            ),
            Hparam(
                "reported_model",
                "average",
                "Which model is evaluated: average, the mean over rounds; last, that of the round.",
                source="AFL, Algorithm 1",
                choices=("average", "last"),
            ),
        ),
        server_learning_rate=1.0,
        client_weighting=None,
        needs_num_clients=True,
        needs_index=True,
    )
)
register(
    MethodSpec(
        name="fedmgda_plus",
        summary="FedMGDA+: the common descent direction nearest to an average of unit updates.",
        paper="Hu, Shaloudegi, Zhang, Yu, Federated Learning Meets Multi-objective Optimization, "
        "arXiv 2006.11489",
        builder="tff_algos.methods.fedmgda_plus:build_fedmgda_plus",
        hparams=(
            _number(
                "epsilon",
                0.1,
                "How far epsilon a client's weight may be from lambda0: 0 averages, 1 is MGDA.",
                "AdaFed, App. (grid 0.01, 0.05, 0.1, 0.5, 1)",
                minimum=0.0,
                maximum=1.0,
            ),
            _number(
                "server_lr_decay",
                1.0,
                "Factor by which the server learning rate falls in every server step.",
                "choice: none",
                minimum=0.0,
                maximum=1.0,
                exclusive_minimum=True,
            ),
            _number(
                "iterations",
                60,
                "Newton steps of the quadratic programme's solver.",
                "choice",
                minimum=1,
            ),
        ),
        server_learning_rate=1.0,
        client_weighting="uniform",
    )
)
register(
    MethodSpec(
        name="adafed",
        summary="AdaFed: a common descent direction, steeper for clients of larger loss.",
        paper="Mohajer Hamidi, Yang, AdaFed: Fair Federated Learning via Adaptive Common Descent "
        "Direction, arXiv 2401.04993",
        builder="tff_algos.methods.adafed:build_adafed",
        hparams=(
            _number(
                "gamma",
                1.0,
                "Fairness gamma: client k descends in proportion to F_k^gamma.",
                "AdaFed, App. (1 for FMNIST, FEMNIST, CIFAR-100, CINIC-10; grid 0 to 10)",
                minimum=0.0,
            ),
            Hparam(
                "loss_at",
                "broadcast",
                "Which loss f_k a client reports: of the broadcast model, of the final_model of "
                "its training, or the mean of its last_epoch, each batch before its step.",
                source="AdaFed, Theorem 4.1 (broadcast); Algorithm 1; Remark 5.2",
                choices=("broadcast", "last_epoch", "final_model"),
            ),
            Hparam(
                "step_rule",
                "min",
                "Server step eta_t = server_learning_rate times: min, min F_k^gamma; mean, mean "
                "F_k^gamma; constant, 1; unit, what makes it as long as the mean update.",
                source="AdaFed, Theorem 5.1 (min); the paper gives no eta_t",
                choices=("min", "mean", "constant", "unit"),
            ),
            Hparam(
                "orthogonalization",
                "closed_form",
                "How the direction is found: closed_form, by the Gram matrix; gram_schmidt, "
                "client by client as printed. Equal where the updates are independent. Where they "
                "are not (opposite ones, or more clients than dimensions), closed_form comes "
                "nearest to what all clients ask for, and gram_schmidt passes over those whose "
                "update depends on the clients before them.",
                source="choice",
                choices=("closed_form", "gram_schmidt"),
            ),
            _number(
                "tolerance",
                1e-5,
                "How well an update is known: a combination of updates is no direction if it is "
                "shorter than this, relative to its terms, and counts in full from 10 times on.",
                "choice: rounding in float32, with room",
                minimum=0.0,
                exclusive_minimum=True,
            ),
            _number(
                "loss_floor",
                1e-8,
                "Least loss f_k of a client: at 0 there is no such direction.",
                "choice",
                minimum=0.0,
                exclusive_minimum=True,
            ),
        ),
        server_learning_rate=1.0,
        client_weighting=None,
    )
)
register(
    MethodSpec(
        name="fedfa",
        summary="FedFA: weights from accuracy and participation, momentum on both sides.",
        paper="Huang, Li, Wang, Du, Zhang, Fairness and Accuracy in Federated Learning, "
        "arXiv 2012.10069",
        builder="tff_algos.methods.fedfa:build_fedfa",
        hparams=(
            _number(
                "alpha", 0.5, "Share alpha of accuracy in weights.", "AdaFed, App.", minimum=0.0
            ),
            _number("beta", 0.5, "Share beta of participation.", "AdaFed, App.", minimum=0.0),
            _number(
                "momentum",
                0.5,
                "Server momentum gamma_s: m <- gamma_s * m + mean update.",
                "AdaFed, App.",
                minimum=0.0,
                maximum=1.0,
                exclusive_maximum=True,
            ),
            Hparam(
                "accuracy_at",
                "trained",
                "Whose accuracy a client reports: the trained model's or the broadcast one's.",
                source="choice",
                choices=("trained", "broadcast"),
            ),
            Hparam(
                "accuracy_metric",
                "accuracy",
                "Name of the model's metric that serves as accuracy.",
                source="choice",
            ),
        ),
        server_learning_rate=1.0,
        client_weighting=None,
        client_optimizers=("sgdm", "sgd", "adagrad", "adam", "adamw", "rmsprop", "yogi"),
        needs_num_clients=True,
        needs_index=True,
    )
)

register(
    MethodSpec(
        name="scaffold",
        summary="Control variates on server and clients take out the clients' drift.",
        paper="Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging, arXiv 1910.06378",
        builder="tff_algos.methods.scaffold:build_scaffold",
        hparams=(
            Hparam(
                "first_visit",
                "server",
                "Control variate of a client on its first visit: the server's, or zero.",
                source="Adaptive Federated Optimization, Algorithm 6 (SCAFFOLD itself: zero)",
                choices=("server", "zero"),
            ),
        ),
        server_learning_rate=1.0,
        client_optimizers=("sgd",),
        needs_num_clients=True,
    )
)
register(
    MethodSpec(
        name="client_adam",
        summary="Adam on the clients, each with moments of its own.",
        paper="Zhou et al., FedCAda: Adaptive Client-Side Optimization, arXiv 2405.11811",
        builder="tff_algos.methods.client_adam:build_client_adam",
        hparams=(
            _unit("beta1", 0.9, "Decay beta_1 of the first moment.", f"{_FEDCADA}, section 4.1"),
            _unit("beta2", 0.99, "Decay beta_2 of the second moment.", f"{_FEDCADA}, section 4.1"),
            _positive("epsilon", 1e-8, "Epsilon, added outside the root.", "choice: not given"),
            Hparam(
                "state",
                "keep",
                "Whether each client goes on from the moments of its last round (keep) or starts "
                "afresh in every round (reset).",
                source=f"{_FEDCADA}, Algorithm 1",
                choices=("keep", "reset"),
            ),
            Hparam(
                "t_unit",
                "step",
                "What t counts in beta^t: the client's own steps or rounds, from 1, since its "
                "moments were 0.",
                source="choice: not given",
                choices=("step", "round"),
            ),
        ),
        server_learning_rate=1.0,
        client_weighting="uniform",
        client_optimizers=("sgd",),
    )
)
register(
    MethodSpec(
        name="ditto",
        summary="Each client has a model of its own, held near the common one.",
        paper="Li, Hu, Beirami, Smith, Ditto: Fair and Robust Federated Learning Through "
        "Personalization, arXiv 2012.04221",
        builder="tff_algos.methods.ditto:build_ditto",
        hparams=(
            _number(
                "strength",
                0.1,
                "Pull lambda of a client's own model towards the common one: 0 is local training. "
                "The step diverges where client_learning_rate * lambda > 2.",
                "AdaFed, App. (best on FEMNIST, Shakespeare, CINIC-10; grid 0.01 to 5)",
                minimum=0.0,
                flag="ditto_lambda",
            ),
        ),
        server_learning_rate=1.0,
        client_weighting="uniform",
        client_optimizers=("sgd",),
    )
)


def _climb_plan(settings, round_num, total_rounds):
    del total_rounds
    first = round_num % settings["primal_rounds"] == 0
    return RoundPlan(losses="all" if first and settings["losses"] == "all" else "cohort")


register(
    MethodSpec(
        name="climb",
        summary="CLIMB: no client's loss may exceed the mean by more than epsilon.",
        paper="Shen, Cervino, Hassani, Ribeiro, An Agnostic Approach to Federated Learning with "
        "Class Imbalance, ICLR 2022",
        builder="tff_algos.methods.climb:build_climb",
        hparams=(
            _number(
                "epsilon",
                1.0,
                "Tolerance epsilon: by how much a client's loss may exceed the mean of losses.",
                "released code's default",
                minimum=0.0,
            ),
            _number(
                "lr_lambda",
                1.0,
                "Step size of the multipliers lambda: 0 is uniform FedAvg.",
                "released code's default",
                minimum=0.0,
            ),
            _number(
                "lambda_max",
                100.0,
                "Largest multiplier.",
                "released code (100 in its resilient form, 5 in the other)",
                minimum=0.0,
                exclusive_minimum=True,
            ),
            _number(
                "primal_rounds",
                5,
                "Rounds of a block, at whose end the multipliers move.",
                "released code's default",
                minimum=1,
            ),
            Hparam(
                "losses",
                "all",
                "Whose losses move the multipliers: all, every client's at the start of a block; "
                "seen, those of the clients that were drawn in the block.",
                source="released code (all)",
                choices=("all", "seen"),
            ),
        ),
        server_learning_rate=1.0,
        client_weighting=None,
        needs_num_clients=True,
        needs_index=True,
        plan=_climb_plan,
    )
)
register(
    MethodSpec(
        name="fedcorr",
        summary="FedCorr: finds clients of noisy labels, mends these, then trains on all.",
        paper="Xu, Chen, Quek, Chong, FedCorr: Multi-Stage Federated Learning for Label Noise "
        "Correction, arXiv 2204.04677",
        builder="tff_algos.methods.fedcorr:build_fedcorr",
        hparams=(
            _number(
                "iterations",
                2,
                "Iterations T_1 of stage 1; in each, every client is visited once.",
                "AdaFed, App. on label noise",
                minimum=0,
            ),
            _number(
                "stage1_clients",
                1,
                "Clients of a round of stage 1, which so has T_1 N / stage1_clients rounds.",
                "FedCorr's code, Clothing1M (0.002 of 500)",
                minimum=1,
            ),
            _number(
                "stage2_rounds",
                50,
                "Rounds T_2 of stage 2, on the clean clients. Stage 3 takes those that are left.",
                "FedCorr's code, Clothing1M",
                minimum=0,
            ),
            _number(
                "beta",
                5.0,
                "Strength beta of the proximal term of stage 1, times a client's noise level.",
                "FedCorr's code",
                minimum=0.0,
            ),
            _number(
                "neighbors",
                20,
                "Neighbours k of the local intrinsic dimensionality.",
                "FedCorr's code",
                minimum=2,
            ),
            _number(
                "relabel_ratio",
                0.8,
                "Share of the examples held to be noisy that stage 1 may relabel (pi).",
                "FedCorr's code, Clothing1M",
                minimum=0.0,
                maximum=1.0,
            ),
            _number(
                "confidence",
                0.9,
                "Probability theta above which the global model may relabel an example.",
                "FedCorr's code, Clothing1M",
                minimum=0.0,
                maximum=1.0,
            ),
            _number(
                "clean_level",
                0.1,
                "Noise level kappa up to which a client takes part in stage 2.",
                "FedCorr's code",
                minimum=0.0,
                maximum=1.0,
            ),
            Hparam(
                "mixup",
                True,
                "Whether clients train on mixtures of examples (mixup with alpha = 1).",
                source="FedCorr's code",
            ),
            Hparam(
                "aggregation",
                "fedavg",
                "What the server does in stages 2 and 3: fedavg, or adafed.",
                source="FedCorr (fedavg); AdaFed, Table 19 (adafed)",
                choices=("fedavg", "adafed"),
            ),
            Hparam(
                "adafed_gamma",
                None,
                "AdaFed's power gamma of the loss; only with aggregation=adafed, where not set "
                "means 5.",
                source="AdaFed, App. on label noise",
                type=float,
                minimum=0.0,
            ),
            Hparam(
                "adafed_step_rule",
                None,
                "AdaFed's step rule, see --adafed_step_rule; only with aggregation=adafed, where "
                "not set means min.",
                source="AdaFed, Theorem 5.1",
                type=str,
                choices=("min", "mean", "constant", "unit"),
            ),
        ),
        server_learning_rate=1.0,
        staged=True,
    )
)
