"""The suite's own methods: names, settings, defaults and sources. Knows nothing of TensorFlow."""

from hparams import Hparam
from tff_algos.registry import MethodSpec, register

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
            builder=f"tff_algos.fedopt:build_{name}",
            hparams=hparams,
            server_learning_rate=server_learning_rate,
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
