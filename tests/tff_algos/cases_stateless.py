"""Cases and mutations of the methods without client state, beside FedOpt; see `cases`."""

import functools

from tests.oracles import (
    adaalter,
    delta_sgd,
    fafed,
    fedacg,
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
from tests.tff_algos.case import NEXT_STATE, ROUND, STEP, WEIGHT, Case
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

_WEIGHT = ("weight=client.zero_unless(finite, local.client_weight(data))", "weight=tf.ones([])")
_ROUND = ("return next_state(state, after, total_weight)", "return after")
_GRADIENT = ("Gradient(gradient, local.client_weight(data))", "Gradient(gradient, tf.ones([]))")
# Of `tff_algos/client.py`: the optimizer's state from step to step, and the round's rate in it.
_FRESH = ("slots, weights = optimizer.next(slots,", "_, weights = optimizer.next(slots,")
_RATE = ('slots["learning_rate"] = tf.convert_to_tensor(learning_rate)', "")
_FEDDA_COMMON = [
    WEIGHT,
    ROUND,
    ("beta1 * m + (1.0 - beta1) * g", "beta1 * m - (1.0 - beta1) * g"),
    ("g + mu * (x_k - x)", "g - mu * (x_k - x)"),
    ("lambda p, m: p + m, p, m", "lambda p, m: m, p, m"),
    ("ServerState(x, tuple(m), tuple(v), steps,", "ServerState(x, state.m, tuple(v), steps,"),
    ("rate = alpha * local.learning_rate(state.round_num)", "rate = alpha"),
]

_FEDSAM = [
    ("divide_no_nan(rho, length)", "divide_no_nan(-rho, length)"),
    ("divide_no_nan(rho, length)", "divide_no_nan(rho, 1.0)"),
    ("(at.gradient)) + epsilon", "(at.gradient))"),
    ("at.gradient_at(move(at.weights,", "(lambda x: at.gradient)(move(at.weights,"),
]
_FEDCM = [
    WEIGHT,
    *STEP[:2],
    ("(1.0 - share) * d", "share * d"),
    ("divide_no_nan(-delta, length)", "divide_no_nan(delta, length)"),
    ("(momentum_steps or steps) * local", "steps * local"),
    ("* local.learning_rate(state.round_num)", "* local.learning_rate(tf.constant(0))"),
    ("ServerState(x, d, state.updates + 1", "ServerState(x, state.direction, state.updates + 1"),
    ("state.updates + 1", "state.updates"),
]

MUTATIONS: dict[str, list[tuple[str, str]]] = {
    "fedprox": [("g + mu * (x_k - x)", "g - mu * (x_k - x)"), *STEP],
    "fednova": [
        WEIGHT,
        ("proximal_term(mu, x)", "proximal_term(-mu, x)"),
        ("rho * counter + 1.0", "counter + 1.0"),
        ("(1.0 - learning_rate * mu) * a", "(1.0 + learning_rate * mu) * a"),
        ("if mu else a", "if mu else 0.0 * a + 1.0"),
        ("tf.float32) if mu else a", "tf.float32)"),
        ("x - eta * tau_eff * d", "x - eta * d"),
        ("state._replace(weights=x)", "state"),
    ],
    "fedcada": [
        WEIGHT,
        ("beta1 * m + (1.0 - beta1) * g", "beta1 * m - (1.0 - beta1) * g"),
        ("(1.0 - beta2) * g**2", "g**2"),
        ("correct1 = 1.0 + phi", "correct1 = 1.0 - phi"),
        ("tf.pow(beta2, tf.cast(t", "tf.pow(beta1, tf.cast(t"),
        ('steps_before + at.number if t_unit == "step"', 'steps_before if t_unit == "step"'),
        *STEP[:2],
        ("state.steps + longest", "state.steps"),
        ("ServerState(x, m, v,", "ServerState(x, state.m, v,"),
        ("ServerState(x, m, v,", "ServerState(x, m, state.v,"),
    ],
    "fedcm": [*_FEDCM, ("gradient(at),", "each(tf.negative, gradient(at)),")],
    "fedda_sgdm": [*_FEDDA_COMMON, ("x - rate * p, x, p), v", "x + rate * p, x, p), v")],
    "fedda_adam": [
        *_FEDDA_COMMON,
        ("(p - beta1 * m) / (1.0 - beta1)", "(p + beta1 * m) / (1.0 - beta1)"),
        ("s * local_steps if bias_steps else s", "s"),
        ("(p / correct1)", "p"),
        ("ServerState(x, tuple(m), tuple(v), steps,", "ServerState(x, tuple(m), state.v, steps,"),
    ],
    "fedda_adagrad": [
        *_FEDDA_COMMON,
        ("(p - beta1 * m) / (1.0 - beta1)", "(p - beta1 * m)"),
        ("v + g**2, v, g)", "g**2, v, g)"),
        ("ServerState(x, tuple(m), tuple(v), steps,", "ServerState(x, tuple(m), state.v, steps,"),
    ],
    "fedacg": [
        WEIGHT,
        ROUND,
        ("else 2.0 * beta", "else beta"),
        ("proximal_term(pull, a)", "proximal_term(-pull, a)"),
        ("move(state.weights, lambda_, state.momentum)", "state.weights"),
        (
            "move(state.weights, lambda_, state.momentum)",
            "move(state.weights, 1.0, state.momentum)",
        ),
        ("lambda_ * m + d", "m + d"),
        ("lambda_ * m + d", "lambda_ * m - d"),
        ("move(state.weights, 1.0, m), m,", "move(state.weights, 1.0, m), state.momentum,"),
        ("move(state.weights, 1.0, m), m,", "move(state.weights, 1.0, delta), m,"),
    ],
    "fedexp": [
        WEIGHT,
        ("tf.maximum(1.0, ", "tf.maximum(0.0, "),
        ("longer = 2.0 *", "longer ="),
        ("vectors.squared_norm(delta) + added", "vectors.squared_norm(delta)"),
        ("epsilon * number if", "epsilon if"),
        ("move(state.iterate, eta_g, delta)", "move(state.iterate, 1.0, delta)"),
        ("move(state.iterate, eta_g, delta)", "move(state.iterate, -eta_g, delta)"),
        ("(a + b) / 2.0", "b"),
        ("ServerState(reported, x,", "ServerState(reported, reported,"),
        ("ServerState(reported, x,", "ServerState(reported, state.iterate,"),
        ("state.updates + 1", "state.updates"),
    ],
    "delta_sgd": [
        WEIGHT,
        *STEP,
        ("at.gradient_at(last.weights)", "at.gradient_at(x)"),
        ("if consecutive else at.gradient_at", "if False else at.gradient_at"),
        ("gamma * moved, 2.0 * turned", "gamma * moved, turned"),
        ("gamma * moved, 2.0 * turned", "moved, 2.0 * turned"),
        ("tf.minimum(smooth, grown)", "smooth"),
        ("tf.minimum(smooth, grown)", "grown"),
        ("delta * last.growth", "last.growth"),
        ("delta * last.growth", "delta"),
        ('grown if first_step == "grown" else eta_0', "eta_0"),
        ('grown if first_step == "grown" else eta_0', "grown"),
        ("tf.where(is_first, theta0, growth)", "tf.where(is_first, 1.0, growth)"),
        ("divide_no_nan(rate, last.rate)", "divide_no_nan(rate, eta_0)"),
        ("move(at.weights, -rate, at.gradient)", "move(at.weights, rate, at.gradient)"),
        ("return x_k, Last(at.weights,", "return x_k, Last(last.weights,"),
    ],
    "propfair": [
        WEIGHT,
        *STEP,
        ("base - f < epsilon, beyond", "base - f < 0.0, beyond"),
        ('(epsilon if guard == "epsilon" else base)', "epsilon"),
        ('(epsilon if guard == "epsilon" else base)', "base"),
        ("beyond, 1.0 / (base - f)", "beyond, 1.0 / (base + f)"),
        ("beyond, 1.0 / (base - f)", "beyond, 1.0 / base"),
        ('whole if loss == "round" else at.loss', "at.loss"),
        ("lambda g: slope(f) * g", "lambda g: -slope(f) * g"),
        ("lambda g: slope(f) * g", "lambda g: g"),
    ],
    "fedams": [
        ("beta1 * m + (1.0 - beta1) * d", "beta1 * m - (1.0 - beta1) * d"),
        ("beta2 * v + (1.0 - beta2) * d**2", "beta2 * v + d**2"),
        ("each(tf.maximum, slots.v_max, v)", "v"),
        ("x + eta * (m", "x - eta * (m"),
        ("z + epsilon_max", "z"),
        ("return Slots(m, v, v_max, t)", "return Slots(slots.m, v, v_max, t)"),
        ("return Slots(m, v, v_max, t)", "return Slots(m, slots.v, v_max, t)"),
        ("return Slots(m, v, v_max, t)", "return Slots(m, v, slots.v_max, t)"),
        ("return Slots(m, v, v_max, t)", "return Slots(m, v, v_max, slots.t)"),
        ("if bias_correction:", "if True:"),
    ],
    "fedsam": [
        WEIGHT,
        *STEP,
        *_FEDSAM,
        ("move(at.weights, -eta_l, gradient(at))", "move(at.weights, eta_l, gradient(at))"),
    ],
    "mofedsam": [
        *_FEDSAM,
        (
            "local, beta, momentum_steps, first_round",
            "local, 1.0 - beta, momentum_steps, first_round",
        ),
        ("local, beta, momentum_steps, first_round", "local, beta, None, first_round"),
        ("local, beta, momentum_steps, first_round", 'local, beta, momentum_steps, "mixed"'),
    ],
    "fedsps": [
        ("local.client_weight(data)", "tf.ones([])"),
        ("at.loss - lower_bound", "at.loss + lower_bound"),
        ("(c * tf.maximum(square", "(tf.maximum(square"),
        ("x_k - gamma * g", "x_k + gamma * g"),
        ("tf.where(tf.equal(at.number, 0), gamma_b, grown)", "grown"),
        ("tf.minimum(polyak, bound)", "polyak"),
        ("at.num_examples / n_k", "1.0"),
        *STEP,
    ],
    "adaalter": [
        WEIGHT,
        ROUND,
        ("a + j * epsilon**2", "a + epsilon**2"),
        ("synchronised,\n            )", "own,\n            )"),
        ("a + g**2", "a - g**2"),
        ("ServerState(x, mean.accumulator,", "ServerState(x, state.accumulator,"),
        *STEP[:2],
    ],
    "mfl": [
        WEIGHT,
        ROUND,
        ("move(state.weights, local.server_learning_rate,", "move(state.weights, -1.0,"),
        ("weights=x, slots=d)", "weights=x)"),
        ("data, slots=d)", "data)"),
        _RATE,
        _FRESH,
    ],
    "lookahead": [
        WEIGHT,
        ROUND,
        ("move(state.weights, alpha,", "move(state.weights, -alpha,"),
        ("delta), slots=slots)", "delta))"),
        ("slots if average else None", "initialize().slots if average else None"),
        _FRESH,
        ("client.keep_slots(client_state, data, finite, trained)", "client_state or ()"),
        _RATE,
    ],
    "centralized": [
        ("give((trained.weights,", "give((x,"),
        ("give((trained.weights, trained.slots)", "give((trained.weights, s)"),
        ("tf.cast(client.has_examples(data), tf.float32)", "client.num_examples(data)"),
        ("weights=x, slots=s)", "weights=x)"),
        _RATE,
        _FRESH,
    ],
    "mimelite": [
        WEIGHT,
        ROUND,
        ("move(state.weights, local.server_learning_rate,", "move(state.weights, -1.0,"),
        ("weights=x, slots=s)", "weights=x)"),
        ("tuple(gradient))", "tuple(-g for g in gradient))"),
        ("client.full_loss(model, x, data)", "client.full_loss(model, trained.weights, data)"),
        ('frozen["learning_rate"] = eta', ""),
    ],
    "fedlocal": [
        WEIGHT,
        *STEP[:2],
        ("(1.0 - beta) * p", "p"),
        ("q + a, q, a", "a, q, a"),
        ("(tf.sqrt(v) + epsilon)", "tf.sqrt(v + epsilon)"),
        ('(tf.sqrt(v) + slots["epsilon"])', "tf.sqrt(v)"),
        ("v + g**2, v, gradients", "g**2, v, gradients"),
        ("initial_preconditioner_value=0.0", "initial_preconditioner_value=0.1"),
        ('"beta_1", local.momentum', '"beta_1", 0.0'),
        ('correction == "joint"', "False"),
        ('correction == "joint"', "True"),
    ],
    "stem": [
        NEXT_STATE,
        ("local.client_weight(data)", "tf.ones([])"),
        _GRADIENT,
        ("x_k - eta * d, at.weights", "x_k + eta * d, at.weights"),
        ("(1.0 - forget) * (d - old)", "forget * (d - old)"),
        ("at.gradient_at(ahead)", "at.gradient"),
        ("tf.where(is_first, g, d)", "d"),
        ("move(state.weights, local.server_learning_rate,", "move(state.weights, -1.0,"),
        ("ServerState(x, tuple(d),", "ServerState(x, state.d,"),
        ("state.steps + longest", "state.steps + 1"),
        ("steps + at.number", "steps"),
        ("1.0 / 3.0", "1.0 / 2.0"),
    ],
    "fedlin": [
        _GRADIENT,
        ("local.client_weight(data)", "tf.ones([])"),
        ("(here - there + g)", "(here - there)"),
        ("(here - there + g)", "(here + there - g)"),
        ("eta / steps if divide_rate else eta", "eta"),
        *STEP,
    ],
    "fafed": [
        ("return averaging.next_state(state, after, total_weight)", "return after"),
        _GRADIENT,
        ("local.client_weight(data)", "tf.ones([])"),
        *STEP[:2],
        ("(1.0 - alpha) * (m - old)", "(1.0 - alpha) * (m + old)"),
        ("client.choose(tf.equal(at.number, 0), m, corrected)", "corrected"),
        ("(1.0 - beta) * g**2", "g**2"),
        ("tf.sqrt(v) + rho", "tf.sqrt(v + rho)"),
        ("(m, v, at.weights)", "(m, v, x)"),
        ("ServerState(x, mean.m, mean.v,", "ServerState(x, state.m, mean.v,"),
        ("ServerState(x, mean.m, mean.v,", "ServerState(x, mean.m, state.v,"),
        ("state.updates + 1", "state.updates"),
        ("each(lambda g: g**2, gradient)", "gradient"),
    ],
}
