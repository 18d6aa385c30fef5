"""Cases and mutations of the methods without client state, beside FedOpt; see `cases`."""

import functools

from tests.oracles import (
    adaalter,
    delta_sgd,
    fafed,
    fedacg,
    fedadamw,
    fedams,
    fedcada,
    fedcm,
    fedda,
    fedexp,
    fedlin,
    fedlocal,
    fednova,
    fedopt,
    fedprox,
    fedsam,
    fedsps,
    propfair,
    slots,
    stem,
)
from tests.tff_algos import toy
from tests.tff_algos.case import (
    KEPT,
    NEXT_STATE,
    NO_STEP,
    OWN_WEIGHT,
    RATE,
    ROUND,
    STEP,
    WEIGHT,
    Case,
)
from tff_algos import registry


def case_of(
    run,
    *arguments,
    oracle=None,
    client_lr=0.3,
    halved=False,
    weighting=None,
    kept=None,
    **settings,
):
    """A case whose oracle takes the settings by their own names.

    Args:
      run: The oracle's function.
      *arguments: What it takes beside the problem, before the batch orders.
      oracle: What it takes by name that is not in the settings.
      client_lr: The client learning rate.
      halved: Whether that rate halves every two rounds.
      weighting: The client weighting, if not the method's own.
      kept: From the oracle's last state to what each client keeps.
      **settings: The method's settings, its client optimizer's and the server learning rate.
    """
    named = {k: v for k, v in settings.items() if not k.startswith("client_")}
    if "server_learning_rate" in named:
        named["server_lr"] = named.pop("server_learning_rate")
    named |= {"client_lr": client_lr, **(oracle or {})}
    given = settings | {"client_learning_rate": client_lr}
    if halved:
        given |= {
            "client_lr_schedule": "exp_decay",
            "client_lr_decay_rate": 0.5,
            "client_lr_decay_steps": 2,
        }
        named["client_lr"] = fedopt.exponential_decay(client_lr, 2, 0.5)
    if weighting:
        given["client_weighting"] = named["weighting"] = weighting

    def result(problem, batch_orders, cohorts, dropped=frozenset()):
        return run(problem, *arguments, batch_orders, cohorts, dropped=dropped, **named)

    return Case(
        given,
        lambda *run_of: result(*run_of).weights,
        kept and (lambda *run_of: kept(result(*run_of).states[-1])),
    )


def _fedda(name, **settings):
    """A case whose batches follow the method's plan."""
    settings = {"local_steps": 5, "stabilization": 0.25, "server_learning_rate": 0.5} | settings

    def run(problem, batch_orders, cohorts, *, stabilization, local_steps, **named):
        plan = functools.partial(
            registry.get(name).plan,
            {"local_steps": local_steps, "stabilization": stabilization},
        )
        orders = toy.batch_orders(problem, cohorts, plan)
        return fedda.run(
            problem, name[6:], orders, cohorts, local_steps=local_steps, **named
        )  # fmt: skip

    return case_of(run, **settings)


def _lookahead(**settings):
    settings = {"local_steps": 5} | settings

    def run(problem, batch_orders, cohorts, *, local_steps, state, **named):
        plan = functools.partial(registry.get("lookahead").plan, {"local_steps": local_steps})
        orders = toy.batch_orders(problem, cohorts, plan)
        if state == "keep":
            return slots.run_kept(problem, orders, cohorts, **named)
        return slots.run(problem, orders, cohorts, mode=state, **named)

    return case_of(run, **settings)


def _fedlin_full():
    plan = functools.partial(registry.get("fedlin").plan, {"full_batch": True})

    def run(problem, batch_orders, cohorts, *, full_batch, **named):
        return fedlin.run(problem, toy.batch_orders(problem, cohorts, plan), cohorts, **named)

    return case_of(run, full_batch=True)


def _centralized_steps():
    """A case whose rounds continue in the epoch where the last one stopped."""
    settings = {"steps_per_round": 2}
    plan = functools.partial(registry.get("centralized").plan, settings)

    def run(problem, batch_orders, cohorts, *, steps_per_round, **named):
        orders = toy.batch_orders(problem, cohorts, plan)
        return slots.run(problem, orders, cohorts, mode="average", weighting="uniform", **named)

    return case_of(run, **settings)


_SGDM = {"client_optimizer": "sgdm", "client_momentum": 0.6}
_SGDM_ORACLE = {"optimizer": "sgdm", "optimizer_options": {"momentum": 0.6}}
_ADAM = {
    "client_optimizer": "adam",
    "client_lr": 0.05,
    "client_beta1": 0.6,
    "client_beta2": 0.8,
    "client_epsilon": 0.01,
}
_ADAM_OPTIONS = {"beta1": 0.6, "beta2": 0.8, "epsilon": 0.01}
_ADAM_ORACLE = {"optimizer": "adam", "optimizer_options": _ADAM_OPTIONS}

CASES: dict[str, list[Case]] = {
    "fedprox": [
        case_of(fedprox.run, mu=0.7, server_learning_rate=0.8, halved=True),
        case_of(fedprox.run, mu=0.2, weighting="uniform"),
    ],
    "fednova": [
        case_of(fednova.run, server_learning_rate=0.8, halved=True),
        case_of(
            fednova.run,
            client_optimizer="sgdm",
            client_momentum=0.6,
            oracle={"momentum": 0.6},
            weighting="uniform",
        ),
        case_of(
            fednova.run,
            client_optimizer="nesterov",
            client_momentum=0.6,
            oracle={"momentum": 0.6, "nesterov": True},
        ),
        case_of(fednova.run, mu=0.4),
        case_of(
            fednova.run,
            mu=0.4,
            client_optimizer="sgdm",
            client_momentum=0.6,
            oracle={"momentum": 0.6},
        ),
    ],
    "fedcada": [
        case_of(
            fedcada.run,
            client_lr=0.05,
            beta1=0.7,
            beta2=0.8,
            epsilon=0.01,
            server_learning_rate=0.8,
            option=option,
            t_unit=t_unit,
            weighting=weighting,
            halved=weighting is None,
        )
        for option, t_unit, weighting in (
            ("1", "round", None),
            ("2", "step", "examples"),
            ("3", "round", None),
            ("4", "step", None),
            ("none", "round", "examples"),
        )
    ],
    "fedcm": [
        case_of(fedcm.run, alpha=0.3, server_learning_rate=0.8, halved=True),
        case_of(
            fedcm.run, alpha=0.6, momentum_steps=3.5, first_round="plain", weighting="examples"
        ),
    ],
    "fedda_sgdm": [
        _fedda("fedda_sgdm", beta1=0.6, halved=True),
        _fedda("fedda_sgdm", beta1=0.8, mu=0.5, average_p=True, weighting="uniform"),
    ],
    "fedda_adam": [
        _fedda("fedda_adam", beta1=0.6, beta2=0.8, epsilon=0.05, halved=True),
        _fedda("fedda_adam", beta1=0.8, bias_steps=True, average_p=True, mu=0.5),
    ],
    "fedda_adagrad": [
        _fedda("fedda_adagrad", beta1=0.6, epsilon=0.05, halved=True),
        _fedda("fedda_adagrad", mu=0.5, weighting="uniform"),
    ],
    "fedacg": [
        case_of(fedacg.run, lambda_=0.6, beta=0.7, halved=True),
        case_of(fedacg.run, lambda_=0.9, beta=0.2, proximal="whole", weighting="examples"),
    ],
    "fedexp": [
        case_of(fedexp.run, epsilon=0.001, halved=True),
        case_of(
            fedexp.run,
            epsilon=0.0004,
            epsilon_times="clients",
            first_reported="iterate",
            weighting="examples",
        ),
    ],
    "delta_sgd": [
        case_of(delta_sgd.run, client_lr=0.2, server_learning_rate=0.8, halved=True),
        case_of(
            delta_sgd.run,
            client_lr=0.1,
            gamma=0.6,
            delta=2.0,
            theta0=0.4,
            first_step="grown",
            weighting="examples",
        ),
        case_of(
            delta_sgd.run,
            client_lr=0.05,
            gamma=1.5,
            delta=1.0,
            theta0=3.0,
            difference="consecutive",
        ),
    ],
    "propfair": [
        case_of(propfair.run, base=2.0, server_learning_rate=0.8, halved=True),
        case_of(propfair.run, client_lr=0.2, base=1.3, epsilon=0.3, guard="base"),
        case_of(propfair.run, base=1.6, epsilon=0.4, loss="round", weighting="uniform"),
    ],
    "fedadamw": [
        case_of(
            fedadamw.run,
            client_lr=0.05,
            beta1=0.6,
            beta2=0.8,
            epsilon=0.01,
            weight_decay=0.3,
            alpha=0.4,
            server_learning_rate=0.8,
            halved=True,
        ),
        case_of(
            fedadamw.run,
            client_lr=0.05,
            beta1=0.7,
            beta2=0.9,
            epsilon=0.02,
            weight_decay=0.2,
            second_moment="full",
            bias_steps="common",
            decay_sign="printed",
            counted_steps=3.5,
            weighting="examples",
        ),
        case_of(fedadamw.run, client_lr=0.01),
    ],
    "fedams": [
        case_of(
            fedams.run,
            server_learning_rate=0.1,
            beta1=0.6,
            beta2=0.8,
            epsilon_max=0.02,
            epsilon=0.05,
            halved=True,
        ),
        case_of(fedams.run, server_learning_rate=0.05, bias_correction=False, weighting="examples"),
    ],
    "fedsam": [
        case_of(fedsam.run, rho=0.5, server_learning_rate=0.8, halved=True),
        case_of(fedsam.run, rho=0.8, epsilon=0.3, weighting="examples"),
    ],
    "mofedsam": [
        case_of(fedsam.run_with_momentum, rho=0.5, beta=0.3, server_learning_rate=0.8, halved=True),
        case_of(
            fedsam.run_with_momentum,
            rho=0.8,
            epsilon=0.3,
            beta=0.6,
            momentum_steps=3.5,
            first_round="plain",
            weighting="examples",
        ),
    ],
    "fedsps": [
        case_of(fedsps.run, client_lr=0.5, c=0.7, server_learning_rate=0.8, halved=True),
        case_of(fedsps.run, client_lr=0.2, c=0.9, smoothing=True, weighting="examples"),
        case_of(fedsps.run, client_lr=5.0, c=0.8, lower_bound=0.1, smoothing=True),
    ],
    "adaalter": [
        case_of(adaalter.run, epsilon=0.5, b0=0.7, server_learning_rate=0.8, halved=True),
        case_of(adaalter.run, weighting="uniform"),
    ],
    "mfl": [
        case_of(
            functools.partial(slots.run, mode="average"),
            server_learning_rate=0.8,
            oracle=_SGDM_ORACLE,
            halved=True,
            **_SGDM,
        ),
        case_of(
            functools.partial(slots.run, mode="average"),
            oracle=_ADAM_ORACLE,
            weighting="uniform",
            **_ADAM,
        ),
    ],
    "lookahead": [
        _lookahead(state="reset", oracle=_SGDM_ORACLE | {"server_lr": 0.5}, halved=True, **_SGDM),
        _lookahead(state="average", oracle=_ADAM_ORACLE, server_learning_rate=0.7, **_ADAM),
        # Fewer steps than the largest client has batches: it still counts by all its examples.
        _lookahead(
            state="keep",
            local_steps=2,
            server_learning_rate=0.7,
            oracle=_ADAM_ORACLE,
            halved=True,
            **_ADAM,
        ),
    ],
    "mimelite": [
        case_of(
            functools.partial(slots.run, mode="frozen"),
            server_learning_rate=0.8,
            oracle=_SGDM_ORACLE,
            halved=True,
            **_SGDM,
        ),
        case_of(
            functools.partial(slots.run, mode="frozen"),
            oracle=_ADAM_ORACLE,
            weighting="uniform",
            **_ADAM,
        ),
    ],
    # Several clients, whose weights and slots are averaged: MFL without a server step.
    "centralized": [
        case_of(
            functools.partial(slots.run, mode="average", weighting="uniform"),
            oracle=_SGDM_ORACLE,
            halved=True,
            **_SGDM,
        ),
        case_of(
            functools.partial(slots.run, mode="average", weighting="uniform"),
            oracle=_ADAM_ORACLE,
            **_ADAM,
        ),
        _centralized_steps(),
    ],
    "fedlocal": [
        case_of(
            fedlocal.run,
            server_learning_rate=0.8,
            halved=True,
            oracle={"optimizer": "adam", "options": _ADAM_OPTIONS, "epsilon": 0.01, "beta": 0.6},
            **_ADAM,
        ),
        case_of(
            fedlocal.run,
            correction="local",
            server_learning_rate=3.0,
            oracle={"optimizer": "sgdm", "options": {"momentum": 0.6}, "beta": 0.6},
            weighting="uniform",
            **_SGDM,
        ),
        case_of(fedlocal.run, client_optimizer="adagrad", oracle={"optimizer": "adagrad"}),
        case_of(
            fedlocal.run,
            client_optimizer="adagrad",
            client_initial_accumulator=0.2,
            client_epsilon=0.01,
            oracle={"optimizer": "adagrad", "options": {"initial": 0.2}, "epsilon": 0.01},
        ),
    ],
    "stem": [
        case_of(stem.run, a=0.3, server_learning_rate=0.8, halved=True),
        case_of(stem.run, schedule="decay", w=2.0, c=3.0, weighting="examples"),
    ],
    "fedlin": [
        case_of(fedlin.run, server_learning_rate=0.8, halved=True),
        case_of(fedlin.run, client_lr=0.2, divide_rate=False, weighting="uniform"),
        _fedlin_full(),
    ],
    "fafed": [
        case_of(
            fafed.run,
            client_lr=0.05,
            alpha=0.3,
            beta=0.7,
            rho=0.1,
            server_learning_rate=0.8,
            halved=True,
        ),
        case_of(fafed.run, client_lr=0.01, weighting="examples"),
    ],
}

_GRADIENT = ("Gradient(gradient, local.client_weight(data))", "Gradient(gradient, tf.ones([]))")
# Of `tff_algos/client.py`: the optimizer's state from step to step, and the round's rate in it.
_FRESH = (
    "slots, weights = optimizer.step(slots, at.weights, gradient)",
    "_, weights = optimizer.step(slots, at.weights, gradient)",
)
_CLIENT_RATE = (
    'slots | {"learning_rate": tf.convert_to_tensor(learning_rate)}',
    "slots",
)
_FEDDA = [
    WEIGHT,
    ROUND,
    ("moving_average(beta1, m, g)", "beta1 * m - (1.0 - beta1) * g"),
    ("at.gradient + mu * (at.weights - x)", "at.gradient - mu * (at.weights - x)"),
    ("p + m", "m"),
    (
        "ServerState(x, m, v, steps, state.round_num)",
        "ServerState(x, state.m, v, steps, state.round_num)",
    ),
    ("alpha * local.learning_rate(state.round_num)", "alpha"),
]
_FEDADAMW_STATE = "ServerState(x, d, v_bar, state.steps + steps, state.round_num)"
_MOFEDSAM = "client_momentum.build(gradient, model, local, beta, momentum_steps, first_round)"
_UPHILL = "tf.math.divide_no_nan(rho, at.gradient.norm() + epsilon)"
_FEDSAM = [
    (_UPHILL, f"-{_UPHILL}"),
    (_UPHILL, "rho"),
    ("at.gradient.norm() + epsilon", "at.gradient.norm()"),
    ("at.gradient_at(at.weights + uphill * at.gradient)", "at.gradient"),
]
_DIRECTION = "(momentum_steps or steps) * local.learning_rate(state.round_num)"
_FEDCM = [
    WEIGHT,
    *RATE,
    ("(1.0 - share) * d", "share * d"),
    ("(-delta).over(length)", "delta.over(length)"),
    (_DIRECTION, "steps * local.learning_rate(state.round_num)"),
    (_DIRECTION, "(momentum_steps or steps) * local.learning_rate(tf.constant(0))"),
    (
        "ServerState(x, d, state.updates + 1, state.round_num)",
        "ServerState(x, state.direction, state.updates + 1, state.round_num)",
    ),
    ("state.updates + 1", "state.updates"),
]

MUTATIONS: dict[str, list[tuple[str, str]]] = {
    "fedprox": [
        ("gradient + mu * (x_k - x)", "gradient - mu * (x_k - x)"),
        *STEP,
    ],
    "fednova": [
        WEIGHT,
        ("proximal_term(mu, x)", "proximal_term(-mu, x)"),
        ("rho * counter + 1.0", "counter + 1.0"),
        ("(1.0 - learning_rate * mu) * a", "(1.0 + learning_rate * mu) * a"),
        (
            "tf.cast(client.num_steps(data), tf.float32) if mu else a",
            "tf.cast(client.num_steps(data), tf.float32) if mu else 0.0 * a + 1.0",
        ),
        (
            "tf.cast(client.num_steps(data), tf.float32) if mu else a",
            "tf.cast(client.num_steps(data), tf.float32)",
        ),
        ("state.weights - eta * tau_eff * d", "state.weights - eta * d"),
        ("state._replace(weights=state.weights - eta * tau_eff * d)", "state"),
    ],
    "fedcada": [
        WEIGHT,
        ("moving_average(beta1, m, at.gradient)", "beta1 * m - (1.0 - beta1) * at.gradient"),
        ("moving_average(beta2, v, at.gradient**2)", "beta2 * v + at.gradient**2"),
        (
            "1.0 + phi(tf.pow(beta1, tf.cast(t, tf.float32)))",
            "1.0 - phi(tf.pow(beta1, tf.cast(t, tf.float32)))",
        ),
        ("tf.pow(beta2, tf.cast(t, tf.float32))", "tf.pow(beta1, tf.cast(t, tf.float32))"),
        (
            'steps_before + at.number if t_unit == "step" else round_num',
            'steps_before if t_unit == "step" else round_num',
        ),
        *RATE,
        ("state.steps + longest", "state.steps"),
        (
            "ServerState(x, m, v, state.steps + longest, state.round_num)",
            "ServerState(x, state.m, v, state.steps + longest, state.round_num)",
        ),
        (
            "ServerState(x, m, v, state.steps + longest, state.round_num)",
            "ServerState(x, m, state.v, state.steps + longest, state.round_num)",
        ),
    ],
    "fedcm": [
        *_FEDCM,
        ("share * gradient(at)", "share * -gradient(at)"),
    ],
    "fedda_sgdm": [
        *_FEDDA,
        ("x - rate * p", "x + rate * p"),
    ],
    "fedda_adam": [
        *_FEDDA,
        ("(p - beta1 * state.m) / (1.0 - beta1)", "(p + beta1 * state.m) / (1.0 - beta1)"),
        ("s * local_steps if bias_steps else s", "s"),
        ("p / bias_left(beta1, s)", "p"),
        (
            "ServerState(x, m, v, steps, state.round_num)",
            "ServerState(x, m, state.v, steps, state.round_num)",
        ),
    ],
    "fedda_adagrad": [
        *_FEDDA,
        ("(p - beta1 * state.m) / (1.0 - beta1)", "p - beta1 * state.m"),
        ("v += g**2", "v = g**2"),
        (
            "ServerState(x, m, v, steps, state.round_num)",
            "ServerState(x, m, state.v, steps, state.round_num)",
        ),
    ],
    "fedacg": [
        WEIGHT,
        ROUND,
        ("2.0 * beta", "beta"),
        ("proximal_term(pull, a)", "proximal_term(-pull, a)"),
        ("state.weights + lambda_ * state.momentum", "state.weights"),
        ("state.weights + lambda_ * state.momentum", "state.weights + state.momentum"),
        ("lambda_ * state.momentum + delta", "state.momentum + delta"),
        ("lambda_ * state.momentum + delta", "lambda_ * state.momentum - delta"),
        (
            "ServerState(state.weights + m, m, state.round_num)",
            "ServerState(state.weights + m, state.momentum, state.round_num)",
        ),
        (
            "ServerState(state.weights + m, m, state.round_num)",
            "ServerState(state.weights + delta, m, state.round_num)",
        ),
    ],
    "fedexp": [
        WEIGHT,
        (
            "tf.maximum(1.0, tf.math.divide_no_nan(square, longer))",
            "tf.math.divide_no_nan(square, longer)",
        ),
        ("2.0 * (delta.squared_norm() + added)", "delta.squared_norm() + added"),
        ("delta.squared_norm() + added", "delta.squared_norm()"),
        ("epsilon * number", "epsilon"),
        ("state.iterate + eta_g * delta", "state.iterate + delta"),
        ("state.iterate + eta_g * delta", "state.iterate - eta_g * delta"),
        ("(state.iterate + x) / 2.0", "x"),
        (
            "ServerState(reported, x, state.updates + 1, state.round_num)",
            "ServerState(reported, reported, state.updates + 1, state.round_num)",
        ),
        (
            "ServerState(reported, x, state.updates + 1, state.round_num)",
            "ServerState(reported, state.iterate, state.updates + 1, state.round_num)",
        ),
        ("state.updates + 1", "state.updates"),
    ],
    "delta_sgd": [
        WEIGHT,
        *STEP,
        ("at.gradient_at(last.weights)", "at.gradient_at(x)"),
        (
            "last.gradient if consecutive else at.gradient_at(last.weights)",
            "at.gradient_at(last.weights)",
        ),
        (
            "tf.math.divide_no_nan(gamma * moved, 2.0 * turned)",
            "tf.math.divide_no_nan(gamma * moved, turned)",
        ),
        (
            "tf.math.divide_no_nan(gamma * moved, 2.0 * turned)",
            "tf.math.divide_no_nan(moved, 2.0 * turned)",
        ),
        ("tf.minimum(smooth, grown)", "smooth"),
        ("tf.minimum(smooth, grown)", "grown"),
        ("delta * last.growth", "last.growth"),
        ("delta * last.growth", "delta"),
        ('grown if first_step == "grown" else eta_0', "eta_0"),
        ('grown if first_step == "grown" else eta_0', "grown"),
        ("tf.where(is_first, theta0, growth)", "tf.where(is_first, 1.0, growth)"),
        ("tf.math.divide_no_nan(rate, last.rate)", "tf.math.divide_no_nan(rate, eta_0)"),
        ("at.weights - rate * at.gradient", "at.weights + rate * at.gradient"),
        (
            "Last(at.weights, at.gradient if consecutive else (), rate, growth)",
            "Last(last.weights, at.gradient if consecutive else (), rate, growth)",
        ),
    ],
    "propfair": [
        WEIGHT,
        *STEP,
        ("base - f < epsilon", "base - f < 0.0"),
        ('epsilon if guard == "epsilon" else base', "epsilon"),
        ('epsilon if guard == "epsilon" else base', "base"),
        (
            "tf.where(base - f < epsilon, beyond, 1.0 / (base - f))",
            "tf.where(base - f < epsilon, beyond, 1.0 / (base + f))",
        ),
        (
            "tf.where(base - f < epsilon, beyond, 1.0 / (base - f))",
            "tf.where(base - f < epsilon, beyond, 1.0 / base)",
        ),
        ('whole if loss == "round" else at.loss', "at.loss"),
        ("slope(f) * at.gradient", "-slope(f) * at.gradient"),
        ("slope(f) * at.gradient", "at.gradient"),
    ],
    "fedadamw": [
        WEIGHT,
        *RATE,
        ("moving_average(beta1, m, at.gradient)", "beta1 * m + at.gradient"),
        ("moving_average(beta2, v, at.gradient**2)", "beta2 * v + at.gradient**2"),
        ("j if separate else t", "j"),
        ("j if separate else t", "t"),
        (
            "bias_left(tf.constant(beta2, tf.float64), t)",
            "bias_left(tf.constant(beta2, tf.float64), j)",
        ),
        ("v_hat.sqrt() + epsilon", "(v_hat + epsilon).sqrt()"),
        ("alpha * d", "-alpha * d"),
        ("alpha * d", "d"),
        ("pull * at.weights", "-pull * at.weights"),
        ("pull * at.weights", "pull * x"),
        ('weight_decay if decay_sign == "adamw" else -weight_decay', "weight_decay"),
        ("at.weights - eta * direction", "at.weights + eta * direction"),
        ("zeros(x) + v_bar", "zeros(x)"),
        ('v if second_moment == "full" else v.map(tf.reduce_mean)', "v.map(tf.reduce_mean)"),
        ("v.map(tf.reduce_mean)", "v.map(tf.reduce_max)"),
        ("counted_steps or taken", "taken"),
        ("(-delta).over(steps * local.learning_rate(state.round_num))", "(-delta).over(steps)"),
        (
            "(-delta).over(steps * local.learning_rate(state.round_num))",
            "delta.over(steps * local.learning_rate(state.round_num))",
        ),
        (_FEDADAMW_STATE, _FEDADAMW_STATE.replace("d,", "state.direction,")),
        (_FEDADAMW_STATE, _FEDADAMW_STATE.replace("v_bar", "state.second_moment")),
        (_FEDADAMW_STATE, _FEDADAMW_STATE.replace("state.steps + steps", "state.steps")),
    ],
    "fedams": [
        ("moving_average(beta1, slots.m, delta)", "beta1 * slots.m - (1.0 - beta1) * delta"),
        ("moving_average(beta2, slots.v, delta**2)", "beta2 * slots.v + delta**2"),
        ("slots.v_max.maximum(v)", "v"),
        (
            "x += eta * (m / correct1) / (v_max.sqrt() / correct2 + epsilon)",
            "x -= eta * (m / correct1) / (v_max.sqrt() / correct2 + epsilon)",
        ),
        ("zeros(x) + epsilon_max", "zeros(x)"),
        ("Slots(m, v, v_max, t)", "Slots(slots.m, v, v_max, t)"),
        ("Slots(m, v, v_max, t)", "Slots(m, slots.v, v_max, t)"),
        ("Slots(m, v, v_max, t)", "Slots(m, v, slots.v_max, t)"),
        ("Slots(m, v, v_max, t)", "Slots(m, v, v_max, slots.t)"),
        ("bias_correction", "True"),
    ],
    "fedsam": [
        WEIGHT,
        *STEP,
        *_FEDSAM,
        ("at.weights - eta_l * gradient(at)", "at.weights + eta_l * gradient(at)"),
    ],
    "mofedsam": [
        *_FEDSAM,
        (
            _MOFEDSAM,
            _MOFEDSAM.replace("beta", "1.0 - beta"),
        ),
        (
            _MOFEDSAM,
            _MOFEDSAM.replace("momentum_steps", "None"),
        ),
        (
            _MOFEDSAM,
            _MOFEDSAM.replace("first_round", '"mixed"'),
        ),
    ],
    "fedsps": [
        OWN_WEIGHT,
        ("at.loss - lower_bound", "at.loss + lower_bound"),
        ("c * tf.maximum(square, 1e-12)", "tf.maximum(square, 1e-12)"),
        ("at.weights - gamma * at.gradient", "at.weights + gamma * at.gradient"),
        ("tf.where(tf.equal(at.number, 0), gamma_b, grown)", "grown"),
        ("tf.minimum(polyak, bound)", "polyak"),
        ("at.num_examples / n_k", "1.0"),
        *STEP,
    ],
    "adaalter": [
        WEIGHT,
        ROUND,
        ("synchronised + j * epsilon**2", "synchronised + epsilon**2"),
        ("synchronised + j * epsilon**2", "own + j * epsilon**2"),
        ("own + g**2", "own - g**2"),
        (
            "ServerState(x, mean.accumulator, state.round_num)",
            "ServerState(x, state.accumulator, state.round_num)",
        ),
        *RATE,
    ],
    "mfl": [
        WEIGHT,
        ROUND,
        RATE[0],
        ("state._replace(weights=x, slots=d)", "state._replace(weights=x)"),
        (
            "client.train(model, optimizer, eta, x, data, slots=d)",
            "client.train(model, optimizer, eta, x, data)",
        ),
        _CLIENT_RATE,
        _FRESH,
    ],
    "lookahead": [
        WEIGHT,
        ROUND,
        ("state.weights + alpha * delta", "state.weights - alpha * delta"),
        (
            "state._replace(weights=state.weights + alpha * delta, slots=slots)",
            "state._replace(weights=state.weights + alpha * delta)",
        ),
        ("slots if average else None", "initialize().slots if average else None"),
        _FRESH,
        KEPT,
        # A kept optimizer's rate is the round's, too.
        ('slots["learning_rate"] = tf.convert_to_tensor(learning_rate)', ""),
    ],
    "centralized": [
        (
            "ClientResult(trained, (trained.weights, trained.slots), weight=weight)",
            "ClientResult(trained, (x, trained.slots), weight=weight)",
        ),
        (
            "ClientResult(trained, (trained.weights, trained.slots), weight=weight)",
            "ClientResult(trained, (trained.weights, s), weight=weight)",
        ),
        ("tf.cast(client.has_examples(data), tf.float32)", "client.num_examples(data)"),
        ("state._replace(weights=x, slots=s)", "state._replace(weights=x)"),
        _CLIENT_RATE,
        _FRESH,
    ],
    "mimelite": [
        WEIGHT,
        ROUND,
        RATE[0],
        ("state._replace(weights=x, slots=s)", "state._replace(weights=x)"),
        (
            "optimizer.step(state.slots, state.weights, gradient)",
            "optimizer.step(state.slots, state.weights, -gradient)",
        ),
        ("client.full_loss(model, x, data)", "client.full_loss(model, trained.weights, data)"),
        ('frozen["learning_rate"] = eta', ""),
    ],
    "fedlocal": [
        WEIGHT,
        *RATE,
        (
            "moving_average(beta, a, _preconditioner(slots, at.weights))",
            "beta * a + _preconditioner(slots, at.weights)",
        ),
        ("q + a", "a"),
        ("tf.sqrt(v) + epsilon", "tf.sqrt(v + epsilon)"),
        (
            'Vector(slots["preconditioner"]).sqrt() + slots["epsilon"]',
            'Vector(slots["preconditioner"]).sqrt()',
        ),
        ("v + g**2", "g**2"),
        ("tf.cast(initial_preconditioner_value, s.dtype)", "tf.cast(0.1, s.dtype)"),
        ('slots.get("beta_1", local.momentum)', 'slots.get("beta_1", 0.0)'),
        ('correction == "joint"', "False"),
        ('correction == "joint"', "True"),
    ],
    "stem": [
        NEXT_STATE,
        OWN_WEIGHT,
        _GRADIENT,
        ("at.weights - eta * d", "at.weights + eta * d"),
        ("(1.0 - forget) * (d - at.gradient)", "forget * (d - at.gradient)"),
        ("at.gradient_at(ahead)", "at.gradient"),
        ("client.choose(is_first, gradient, state.d)", "state.d"),
        RATE[0],
        (
            "ServerState(x, d, state.steps + longest, state.round_num)",
            "ServerState(x, state.d, state.steps + longest, state.round_num)",
        ),
        ("state.steps + longest", "state.steps + 1"),
        ("steps + at.number", "steps"),
        ("1.0 / 3.0", "1.0 / 2.0"),
    ],
    "fedlin": [
        _GRADIENT,
        OWN_WEIGHT,
        ("at.gradient - at.gradient_at(x) + g", "at.gradient - at.gradient_at(x)"),
        ("at.gradient - at.gradient_at(x) + g", "at.gradient + at.gradient_at(x) - g"),
        ("eta / steps if divide_rate else eta", "eta"),
        *RATE,
        NO_STEP,
    ],
    "fafed": [
        NEXT_STATE,
        _GRADIENT,
        OWN_WEIGHT,
        *RATE,
        ("m - at.gradient_at(previous)", "m + at.gradient_at(previous)"),
        ("client.choose(tf.equal(at.number, 0), m, corrected)", "corrected"),
        ("moving_average(beta, v, at.gradient**2)", "beta * v + at.gradient**2"),
        ("v.sqrt() + rho", "(v + rho).sqrt()"),
        ("(m, v, at.weights)", "(m, v, x)"),
        (
            "ServerState(x, mean.m, mean.v, state.updates + 1, state.round_num)",
            "ServerState(x, state.m, mean.v, state.updates + 1, state.round_num)",
        ),
        (
            "ServerState(x, mean.m, mean.v, state.updates + 1, state.round_num)",
            "ServerState(x, mean.m, state.v, state.updates + 1, state.round_num)",
        ),
        ("state.updates + 1", "state.updates"),
        ("gradient**2", "gradient"),
    ],
}
