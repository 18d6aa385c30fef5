"""Cases and mutations of methods that know their clients by name; see `cases`.

Their clients keep something between rounds, or all of them are asked in some rounds.
"""

from tests.oracles import client_adam, climb, ditto, feddyn, scaffold
from tests.tff_algos.case import STEP, WEIGHT
from tests.tff_algos.cases_stateless import case_of

_MOMENTS = {"client_lr": 0.05, "beta1": 0.6, "beta2": 0.8, "epsilon": 0.01}


CASES = {
    "scaffold": [
        case_of(scaffold.run, server_learning_rate=0.8, halved=True, kept=lambda state: state[1]),
        case_of(scaffold.run, first_visit="zero", weighting="uniform"),
    ],
    "client_adam": [
        case_of(
            client_adam.run, server_learning_rate=0.8, halved=True, kept=lambda c: c, **_MOMENTS
        ),
        case_of(client_adam.run, t_unit="round", weighting="examples", **_MOMENTS),
        case_of(client_adam.run, state="reset", **_MOMENTS),
    ],
    "ditto": [
        case_of(
            ditto.run, lambda_=0.7, server_learning_rate=0.8, halved=True, kept=lambda own: own
        ),
        case_of(ditto.run, lambda_=0.2, weighting="examples", kept=lambda own: own),
    ],
    "feddyn": [
        case_of(feddyn.run, alpha=0.3, halved=True, kept=lambda state: state[1]),
        case_of(
            feddyn.run, alpha=0.2, mean_examples=4.0, reported="mean", kept=lambda state: state[1]
        ),
        case_of(feddyn.run, alpha=0.5, reported="mean", weighting="examples"),
    ],
    "climb": [
        case_of(
            climb.run,
            epsilon=0.1,
            lr_lambda=3.0,
            primal_rounds=2,
            server_learning_rate=0.8,
            halved=True,
        ),
        case_of(
            climb.run, epsilon=0.0, lr_lambda=8.0, lambda_max=0.3, primal_rounds=2, losses="seen"
        ),
        case_of(climb.run, epsilon=0.05, lr_lambda=2.0, primal_rounds=1, losses="seen"),
    ],
}

MUTATIONS = {
    "scaffold": [
        ("g - c_k + c, gradient", "g + c_k - c, gradient"),
        ("c_k - c - d / (steps * eta_l)", "c_k - c + d / (steps * eta_l)"),
        ("c_k - c - d / (steps * eta_l)", "c_k - d / (steps * eta_l)"),
        ("client.keep(client_state, data, finite & counts, after)", "client_state"),
        ("number / num_clients", "1.0"),
        ("ServerState(x, c,", "ServerState(x, state.control,"),
        ("weight = local.client_weight(data)", "weight = tf.ones([])"),
        ("move(state.weights, eta, delta)", "move(state.weights, 1.0, delta)"),
        ("subtract(after, c_k)", "subtract(c_k, after)"),
        ('zeros(x) if first_visit == "zero" else c', "zeros(x)"),
    ],
    "client_adam": [
        WEIGHT,
        *STEP,
        ("(1.0 - beta1) * g, m", "g, m"),
        ("(1.0 - beta2) * g**2", "g**2"),
        ("return tf.cast(1.0 - power", "return tf.cast(1.0 + power"),
        ("start.steps + at.number", "start.steps"),
        ("start.steps + client.num_steps(data)", "start.steps"),
        ("else rounds_before)", "else 0)"),
        ("client.keep(client_state, data, finite, moments)", "client_state"),
        ("Moments(m, v, start", "Moments(m, start.v, start"),
        ('if state == "keep" else None', ""),
    ],
    "ditto": [
        WEIGHT,
        *STEP,
        ("w - eta_l * g, at.weights", "w + eta_l * g, at.weights"),
        ("v - eta_l * (g + lambda_", "v - eta_l * (g - lambda_"),
        ("v - eta_l * (g +", "v + eta_l * (g +"),
        ("lambda_ * (v - x)", "lambda_ * v"),
        ("at.gradient_at(v)", "at.gradient"),
        ("client.recall(client_state, x)", "x"),
        ("client.keep(client_state, data, finite & own_finite, own)", "client_state"),
    ],
    "feddyn": [
        WEIGHT,
        ("g - h + alpha_k", "g + h + alpha_k"),
        ("alpha_k * (x_k - x)", "alpha_k * (x - x_k)"),
        ("move(h_k, -alpha_k, delta)", "move(h_k, alpha_k, delta)"),
        ("client.keep(client_state, data, finite, ", "(lambda *a: client_state)("),
        ("client.recall(client_state, zeros(x))", "zeros(x)"),
        ("divide_no_nan(mean_examples, client.num_examples(data))", "divide_no_nan(1.0, 1.0)"),
        ("-alpha * number / num_clients", "-alpha"),
        ("-alpha * number / num_clients", "alpha * number / num_clients"),
        ("move(mean, -1.0 / alpha, h)", "move(mean, -1.0 / alpha, state.h)"),
        ("move(mean, -1.0 / alpha, h)", "mean"),
        ("ServerState(mean, x, h,", "ServerState(mean, mean, h,"),
        ("ServerState(mean, x, h,", "ServerState(x, x, h,"),
        ("ServerState(x, (), h,", "ServerState(x, (), state.h,"),
    ],
    "climb": [
        ("1.0 + state.multipliers -", "1.0 - state.multipliers +"),
        ("w_k * (x_k - x)", "x_k - x"),
        ("tf.math.divide_no_nan(d, number)", "d"),
        *STEP[:2],
        ("losses - mean - epsilon", "losses - mean + epsilon"),
        ("losses - mean - epsilon", "mean - losses - epsilon"),
        ("counts * losses", "losses"),
        ("lr_lambda / num_clients", "lr_lambda"),
        ("0.0, lambda_max)", "-lambda_max, lambda_max)"),
        ("0.0, lambda_max)", "0.0, 1e9)"),
        (" & ~tf.gather(state.seen, reports.index)", ""),
        ("multipliers, losses, seen & ~ends", "state.multipliers, losses, seen & ~ends"),
        ("losses, seen & ~ends", "losses, seen"),
        ("counted * data.participates", "counted"),
    ],
}
