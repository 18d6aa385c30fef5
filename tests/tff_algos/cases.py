"""For every method: settings with their oracle, and mutations that a test must catch.

A method registered without an entry here fails the tests that walk the registry.
"""

from tests.oracles import client_optimizers, fedopt, slots
from tests.tff_algos import cases_fairness, cases_stateful, cases_stateless
from tests.tff_algos.case import AVERAGING, Case
from tff_algos import registry

# The suite's own methods; other tests bring in example methods, which carry their oracles
# themselves.
OWN = [n for n in registry.names() if str(registry.get(n).builder).startswith("tff_algos.")]


def _fedopt(name, *, server_lr=0.5, client_lr=0.4, oracle_client=None, schedule=None, **settings):
    given = dict(client_learning_rate=client_lr, server_learning_rate=server_lr, **settings)
    own = {k: settings[k] for k in ("beta1", "beta2", "tau", "momentum") if k in settings}

    def oracle(problem, batch_orders, cohorts, dropped=frozenset()):
        return fedopt.run(
            problem,
            name,
            settings.get("variant", "released"),
            batch_orders,
            rounds=len(cohorts),
            cohorts=cohorts,
            client_lr=schedule(client_lr) if schedule else client_lr,
            server_lr=server_lr,
            client_optimizer=oracle_client or "sgd",
            weighting=settings.get("client_weighting", "examples"),
            dropped=dropped,
            **own,
        ).weights

    return Case(given, oracle)


def _moments(name):
    return [
        _fedopt(name, server_lr=0.05, beta1=0.7, beta2=0.9, tau=0.01),
        _fedopt(name, server_lr=0.05, beta1=0.7, beta2=0.9, tau=0.05, variant="algorithm2"),
        _fedopt(name, server_lr=0.03, client_weighting="uniform"),
    ]


def _kept_momentum():
    def oracle(problem, batch_orders, cohorts, dropped=frozenset()):
        return slots.run_kept(
            problem,
            batch_orders,
            cohorts,
            dropped=dropped,
            client_lr=0.2,
            optimizer="sgdm",
            optimizer_options={"momentum": 0.6},
        ).weights

    settings = {
        "client_learning_rate": 0.2,
        "client_optimizer": "sgdm",
        "client_momentum": 0.6,
        "client_optimizer_state": "keep",
    }
    return Case(settings, oracle)


CASES: dict[str, list[Case]] = {
    "fedavg": [
        _fedopt(
            "fedavg",
            server_lr=0.8,
            client_lr_schedule="exp_decay",
            client_lr_decay_rate=0.5,
            client_lr_decay_steps=2,
            schedule=lambda lr: fedopt.exponential_decay(lr, 2, 0.5),
        ),
        _fedopt(
            "fedavg",
            client_weighting="uniform",
            client_lr_schedule="inv_sqrt_decay",
            client_lr_decay_steps=2,
            client_lr_warmup_steps=3,
            schedule=lambda lr: fedopt.linear_warmup(fedopt.inverse_sqrt(lr, 2), 3),
        ),
        _fedopt(
            "fedavg",
            client_lr_schedule="inverse_time",
            client_lr_decay_steps=3,
            schedule=lambda lr: fedopt.inverse_time(lr, 3),
        ),
        _fedopt(
            "fedavg",
            client_optimizer="sgdm",
            client_momentum=0.5,
            oracle_client=client_optimizers.build("sgdm", momentum=0.5),
        ),
        _fedopt(
            "fedavg",
            client_optimizer="nesterov",
            client_momentum=0.5,
            oracle_client=client_optimizers.build("nesterov", momentum=0.5),
        ),
        _fedopt(
            "fedavg",
            client_optimizer="adam",
            client_lr=0.05,
            client_beta1=0.5,
            client_beta2=0.75,
            client_epsilon=1e-3,
            oracle_client=client_optimizers.build("adam", beta1=0.5, beta2=0.75, epsilon=1e-3),
        ),
        _kept_momentum(),
        _fedopt("fedavg", client_optimizer="adagrad", oracle_client="adagrad"),
        _fedopt("fedavg", client_optimizer="rmsprop", client_lr=0.05, oracle_client="rmsprop"),
        _fedopt(
            "fedavg",
            client_optimizer="yogi",
            client_lr=0.05,
            client_beta1=0.5,
            client_beta2=0.75,
            oracle_client=client_optimizers.build("yogi", beta1=0.5, beta2=0.75),
        ),
        _fedopt(
            "fedavg",
            client_optimizer="adamw",
            client_lr=0.05,
            client_beta1=0.5,
            client_beta2=0.75,
            client_weight_decay=0.1,
            oracle_client=client_optimizers.build("adamw", beta1=0.5, beta2=0.75, weight_decay=0.1),
        ),
    ],
    "fedavgm": [
        _fedopt("fedavgm", momentum=0.6),
        _fedopt("fedavgm", client_weighting="uniform"),
    ],
    "fedadagrad": [
        _fedopt("fedadagrad", server_lr=0.1, tau=0.01),
        _fedopt("fedadagrad", server_lr=0.1, tau=0.1, variant="algorithm2"),
    ],
    "fedadam": _moments("fedadam"),
    "fedyogi": _moments("fedyogi"),
}

_FEDOPT = [
    (
        "server_optimizer.step(state.optimizer, state.weights, -delta)",
        "server_optimizer.step(state.optimizer, state.weights, delta)",
    ),
    ("ServerState(x, slots, state.round_num)", "ServerState(x, state.optimizer, state.round_num)"),
]

# Each is (fragment, replacement), see `mutants`, and must break the oracle test of some case.
MUTATIONS: dict[str, list[tuple[str, str]]] = {
    "fedavg": [
        _FEDOPT[0],
        *AVERAGING,
        ("x - eta * g", "x + eta * g"),
    ],
    "fedavgm": [
        *_FEDOPT,
        ("momentum * slots.u + g", "momentum * slots.u - g"),
        ("momentum * slots.u + g", "momentum * slots.u + (1 - momentum) * g"),
        ("Momentum(u)", "slots"),
    ],
    "fedadagrad": [
        *_FEDOPT,
        ("slots.v + g**2", "slots.v - g**2"),
        ("v.sqrt() + tau", "(v + tau).sqrt()"),
        ("Accumulator(v)", "slots"),
        ('tau**2 if variant == "algorithm2" else 0.0', "0.0"),
    ],
    "fedadam": [
        *_FEDOPT,
        ("moving_average(beta2, v, square)", "beta2 * v - (1.0 - beta2) * square"),
        ("moving_average(beta2, v, square)", "beta2 * v + square"),
        ("moving_average(beta1, slots.m, g)", "beta1 * slots.m + g"),
        ("Moments(m, v, t)", "Moments(m, slots.v, t)"),
        ("Moments(m, v, t)", "Moments(slots.m, v, t)"),
        ("Moments(m, v, t)", "Moments(m, v, slots.t)"),
        ("(g if released else m) ** 2", "g**2"),
        ("0.0 if released else tau**2", "0.0"),
    ],
    "fedyogi": [
        *_FEDOPT,
        ("(square - v).sign()", "(v - square).sign()"),
        ("(1.0 - beta2) * (square - v).sign()", "(square - v).sign()"),
        ("Moments(m, v, t)", "Moments(m, slots.v, t)"),
        ("(g if released else m) ** 2", "m**2"),
    ],
}

CASES.update(cases_stateless.CASES)
MUTATIONS.update(cases_stateless.MUTATIONS)
CASES.update(cases_fairness.CASES)
CASES.update(cases_stateful.CASES)
MUTATIONS.update(cases_fairness.MUTATIONS)
MUTATIONS.update(cases_stateful.MUTATIONS)
