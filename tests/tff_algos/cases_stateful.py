"""Cases and mutations of methods that know their clients by name; see `cases`.

Their clients keep something between rounds, or all of them are asked in some rounds.
"""

from tests.oracles import client_adam, climb, ditto, feddyn, fedfv, scaffold
from tests.tff_algos.case import KEPT, NO_STEP, OWN_WEIGHT, RATE, STEP, WEIGHT
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
    "fedfv": [
        case_of(
            fedfv.run,
            alpha=0.0,
            tau=2,
            server_learning_rate=0.8,
            halved=True,
            kept=lambda known: known,
        ),
        case_of(fedfv.run, alpha=0.4, tau=1, loss_at="final_model", kept=lambda known: known),
        case_of(fedfv.run, alpha=1.0, tau=1, ages="released", client_lr=0.5),
        case_of(fedfv.run, alpha=1.0, tau=2, ages="released", client_lr=0.5),
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
        ("gradient - c_k + c", "gradient + c_k - c"),
        ("c_k - c - delta / (steps * eta_l)", "c_k - c + delta / (steps * eta_l)"),
        ("c_k - c - delta / (steps * eta_l)", "c_k - delta / (steps * eta_l)"),
        KEPT,
        ("number / num_clients", "1.0"),
        ("ServerState(x, c, state.round_num)", "ServerState(x, state.control, state.round_num)"),
        OWN_WEIGHT,
        ("state.weights + eta * delta", "state.weights + delta"),
        ("after - c_k", "c_k - after"),
        ('zeros(x) if first_visit == "zero" else c', "zeros(x)"),
    ],
    "client_adam": [
        WEIGHT,
        *STEP,
        ("moving_average(beta1, m, at.gradient)", "beta1 * m + at.gradient"),
        ("moving_average(beta2, v, at.gradient**2)", "beta2 * v + at.gradient**2"),
        ("m / left1", "m / (2.0 - left1)"),
        ("start.steps + at.number", "start.steps"),
        ("start.steps + client.num_steps(data)", "start.steps"),
        (
            'start.steps + at.number if t_unit == "step" else rounds_before',
            'start.steps + at.number if t_unit == "step" else 0',
        ),
        KEPT,
        (
            "Moments(m, v, start.steps + client.num_steps(data))",
            "Moments(m, start.v, start.steps + client.num_steps(data))",
        ),
        ('no_moments if state == "keep" else None', "no_moments"),
    ],
    "ditto": [
        WEIGHT,
        *RATE,
        NO_STEP,
        ("at.weights - eta_l * at.gradient", "at.weights + eta_l * at.gradient"),
        (
            "v -= eta_l * (at.gradient_at(v) + lambda_ * (v - x))",
            "v -= eta_l * (at.gradient_at(v) - lambda_ * (v - x))",
        ),
        (
            "v -= eta_l * (at.gradient_at(v) + lambda_ * (v - x))",
            "v += eta_l * (at.gradient_at(v) + lambda_ * (v - x))",
        ),
        ("lambda_ * (v - x)", "lambda_ * v"),
        ("at.gradient_at(v)", "at.gradient"),
        ("client.recall(client_state, x)", "x"),
        KEPT,
    ],
    "feddyn": [
        WEIGHT,
        ("gradient - h_k + alpha_k * (x_k - x)", "gradient + h_k + alpha_k * (x_k - x)"),
        ("alpha_k * (x_k - x)", "alpha_k * (x - x_k)"),
        ("h_k + -alpha_k * delta", "h_k + alpha_k * delta"),
        KEPT,
        ("client.recall(client_state, zeros(x))", "zeros(x)"),
        ("tf.math.divide_no_nan(mean_examples, client.num_examples(data))", "1.0"),
        ("-alpha * number / num_clients", "-alpha"),
        (
            "state.h + -alpha * number / num_clients * delta",
            "state.h + alpha * number / num_clients * delta",
        ),
        ("mean + -1.0 / alpha * h", "mean + -1.0 / alpha * state.h"),
        ("mean + -1.0 / alpha * h", "mean"),
        ("ServerState(mean, x, h, state.round_num)", "ServerState(mean, mean, h, state.round_num)"),
        ("ServerState(mean, x, h, state.round_num)", "ServerState(x, x, h, state.round_num)"),
        ("ServerState(x, (), h, state.round_num)", "ServerState(x, (), state.h, state.round_num)"),
    ],
    "fedfv": [
        ("finite & drawn & client.has_examples(data)", "finite & client.has_examples(data)"),
        ("round_num - kept.round_num", "kept.round_num - round_num"),
        ("tf.where(counts, 0, age)", "age"),
        ("client.keep(client_state, data, counts, Kept(update, round_num))", "client_state"),
        ("Kept(update, round_num)", "Kept(x, round_num)"),
        ("Kept(update, round_num)", "Kept(update, round_num + 1)"),
        ('x if loss_at == "broadcast" else trained.weights', "x"),
        ('x if loss_at == "broadcast" else trained.weights', "trained.weights"),
        ('0 if ages == "released" else 1', "1"),
        ("tf.where(state.round_num >= tau, heeded, g)", "g"),
        ("tf.where(state.round_num >= tau, heeded, g)", "heeded"),
        ("local.server_learning_rate * as_long(gram, g, plain)", "as_long(gram, g, plain)"),
        ("local.server_learning_rate * as_long(gram, g, plain)", "-as_long(gram, g, plain)"),
        ("local.server_learning_rate * as_long(gram, g, plain)", "local.server_learning_rate * g"),
        ("tf.where(present, losses, math.inf)", "tf.where(present, -losses, math.inf)"),
        ("tf.math.ceil((stay_from - 1.0) * (1.0 - alpha))", "stay_from"),
        ("places < stay_from", "places > stay_from"),
        ("tf.linalg.matvec(rows, gram[j])", "gram[j]"),
        ("turns & (along < 0) & tf.not_equal(tf.range(k), j)", "turns & (along > 0)"),
        ("rows - share[:, None] * tf.one_hot(j, k, dtype=tf.float64)", "rows"),
        ("tf.equal(ages, age) & (along < 0)", "tf.equal(ages, age)"),
        ("tf.equal(ages, age) & (along < 0)", "along < 0"),
        ("youngest + tau - 1", "youngest"),
    ],
    "climb": [
        (
            "1.0 + state.multipliers - tf.reduce_mean(state.multipliers)",
            "1.0 - state.multipliers + tf.reduce_mean(state.multipliers)",
        ),
        ("w_k * (trained.weights - x)", "trained.weights - x"),
        ("total.over(number)", "total"),
        *RATE,
        ("losses - mean - epsilon", "losses - mean + epsilon"),
        ("losses - mean - epsilon", "mean - losses - epsilon"),
        ("counts * losses", "losses"),
        ("lr_lambda / num_clients", "lr_lambda"),
        (
            "tf.clip_by_value(multipliers + step * slope, 0.0, lambda_max)",
            "tf.clip_by_value(multipliers + step * slope, -lambda_max, lambda_max)",
        ),
        (
            "tf.clip_by_value(multipliers + step * slope, 0.0, lambda_max)",
            "tf.clip_by_value(multipliers + step * slope, 0.0, 1e9)",
        ),
        ("(reports.counted > 0) & ~tf.gather(state.seen, reports.index)", "reports.counted > 0"),
        (
            "ServerState(x, multipliers, losses, seen & ~ends, round_num)",
            "ServerState(x, state.multipliers, losses, seen & ~ends, round_num)",
        ),
        (
            "ServerState(x, multipliers, losses, seen & ~ends, round_num)",
            "ServerState(x, multipliers, losses, seen, round_num)",
        ),
        ("counted * data.participates", "counted"),
    ],
}
