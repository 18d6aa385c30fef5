"""Cases and mutations of the fairness methods that keep no client state; see `cases`."""

from tests.oracles import (
    adafed,
    adafedadam,
    afl,
    client_optimizers,
    fedfa,
    fedmgda_plus,
    fedopt,
    qfedavg,
    term,
)
from tests.tff_algos.case import DELTA, NEXT_STATE, OWN_WEIGHT, ROUND, Case

_SGDM = dict(client_optimizer="sgdm", client_momentum=0.5)


def _case(
    oracle, *, server_lr=None, client_lr=0.3, names=None, schedule=None, weights=None, **settings
):
    """Settings and what the oracle makes of them.

    Args:
      oracle: A module with `run`.
      server_lr: Given to both if set.
      client_lr: Given to both.
      names: Setting → what the oracle calls it, where that differs.
      schedule: Keyword arguments of the suite's schedule, and the oracle's schedule.
      weights: From an element of the oracle's result to the weights.
      **settings: Given to both.
    """
    given = dict(client_learning_rate=client_lr, **settings)
    own = {
        (names or {}).get(k, k): v
        for k, v in settings.items()
        if k not in ("client_optimizer", "client_momentum", "profile")
    }
    if server_lr is not None:
        given["server_learning_rate"] = own["server_lr"] = server_lr
    if settings.get("client_optimizer") == "sgdm":
        own["client_optimizer"] = client_optimizers.build(
            "sgdm", momentum=settings["client_momentum"]
        )
    if schedule:
        given.update(schedule[0])

    def run(problem, batch_orders, cohorts, dropped=frozenset()):
        history = oracle.run(
            problem,
            batch_orders,
            cohorts=cohorts,
            client_lr=schedule[1](client_lr) if schedule else client_lr,
            dropped=dropped,
            **own,
        )
        return [weights(h) if weights else h for h in history]

    return Case(given, run)


_HALVED = (
    dict(client_lr_schedule="exp_decay", client_lr_decay_rate=0.5, client_lr_decay_steps=2),
    lambda lr: fedopt.exponential_decay(lr, 2, 0.5),
)


def _adafedadam(**settings):
    names = dict(lr_scale_warmup="warmup", client_weighting="weighting", certainty_floor="floor")
    return _case(adafedadam, names=names, weights=lambda h: h[0], **settings)


def _cases():
    return {
        "qfedavg": [
            _case(qfedavg, server_lr=0.8, q=2.0, schedule=_HALVED),
            _case(qfedavg, q=0.5, form="reweight", **_SGDM),
        ],
        "adafedadam": [
            _adafedadam(server_lr=0.05, alpha=2.0, beta1=0.7, beta2=0.9, epsilon=1e-3),
            _adafedadam(alpha=1.0, client_weighting="uniform", schedule=_HALVED, server_lr=0.02),
            _released(),
            # Clients have 1, 3, 4, 7 and 10 examples, in minibatches of 3.
            _adafedadam(server_lr=0.02, alpha=2.0, grad_sample=3),
            # One plain step on 3 examples of a client has C near 1; a large floor is then used.
            _adafedadam(server_lr=0.02, certainty_floor=2.5, lr_scale_warmup=1, **_SGDM),
            # Float32 holds no loss to this power.
            _adafedadam(server_lr=0.02, alpha=100.0, loss_reference="none", epsilon=1e-3),
        ],
        "term": [
            _case(term, server_lr=0.8, t=2.0, schedule=_HALVED),
            _case(term, t=0.5, normalizer="running", **_SGDM),
        ],
        "afl": [
            _case(
                afl,
                server_lr=0.8,
                gamma_lambda=0.5,
                names={"gamma_lambda": "gamma"},
                schedule=_HALVED,
                weights=lambda h: h[0],
            ),
            _case(
                afl,
                gamma_lambda=0.2,
                reported_model="last",
                names={"gamma_lambda": "gamma", "reported_model": "reported"},
                weights=lambda h: h[0],
                **_SGDM,
            ),
        ],
        "adafed": [
            _case(adafed, server_lr=0.8, gamma=2.0, schedule=_HALVED),
            _case(adafed, gamma=0.5, loss_at="last_epoch", step_rule="mean", **_SGDM),
            _case(
                adafed,
                server_lr=0.6,
                loss_at="final_model",
                step_rule="unit",
                orthogonalization="gram_schmidt",
            ),
            _case(adafed, gamma=0.1, step_rule="constant", loss_floor=2.0, server_lr=0.2),
        ],
        "fedmgda_plus": [
            _case(fedmgda_plus, server_lr=0.4, epsilon=1.0, schedule=_HALVED),
            _case(
                fedmgda_plus,
                server_lr=0.3,
                epsilon=0.1,
                server_lr_decay=0.8,
                client_weighting="examples",
                names={"server_lr_decay": "decay", "client_weighting": "weighting"},
                **_SGDM,
            ),
        ],
        "fedfa": [
            _case(fedfa, server_lr=0.8, alpha=0.7, beta=0.6, momentum=0.4, **_SGDM),
            _case(fedfa, accuracy_at="broadcast", client_optimizer="sgd", schedule=_HALVED),
        ],
    }


def _released():
    case = _adafedadam(server_lr=0.02, loss_reference="none", lr_scale_warmup=6)
    settings = {
        k: v for k, v in case.settings.items() if k not in ("loss_reference", "lr_scale_warmup")
    }
    return case._replace(settings=settings | {"profile": "released"})


CASES = _cases()


_PROJECTED = (
    "tf.linalg.matvec(basis, tf.linalg.matvec(basis, tf.linalg.matvec(gram, rest)), "
    "transpose_a=True)"
)

MUTATIONS = {
    "qfedavg": [
        (
            "state.weights - tf.cast(rate, tf.float32) * total.numerator",
            "state.weights + tf.cast(rate, tf.float32) * total.numerator",
        ),
        ("q * ratio ** (q - 1.0)", "q * ratio**q"),
        ("tf.cast(power, tf.float32) * report.back", "report.back"),
        ("eta_l * largest", "eta_l"),
        ("denominator = power", "denominator = tf.ones_like(power)"),
        NEXT_STATE,
    ],
    "adafedadam": [
        DELTA,
        ("client.first_batches(data, sample) if sample else data", "data"),
        ("client.evaluate(model, initial, sampled)", "client.evaluate(model, initial, data)"),
        ("tf.math.log(s / eta_k) + 1.0", "tf.math.log(s / eta_k)"),
        ("(-delta).over(s)", "-delta"),
        (
            "count * tf.math.divide_no_nan(ratio, scale) ** alpha",
            "tf.math.divide_no_nan(ratio, scale) ** alpha",
        ),
        ("tf.math.divide_no_nan(ratio, scale) ** alpha", "tf.math.divide_no_nan(ratio, scale)"),
        ("tf.where((power > 1 / _LARGE) & (power < _LARGE), 1.0, largest)", "1.0"),
        ("ratio = tf.math.divide_no_nan(ratio, reference)", ""),
        (
            "ServerState(x, state.initial, m, v, c_m, c_v, steps, state.round_num)",
            "ServerState(x, state.initial, state.m, v, c_m, c_v, steps, state.round_num)",
        ),
        (
            "ServerState(x, state.initial, m, v, c_m, c_v, steps, state.round_num)",
            "ServerState(x, state.initial, m, state.v, c_m, c_v, steps, state.round_num)",
        ),
        (
            "ServerState(x, state.initial, m, v, c_m, c_v, steps, state.round_num)",
            "ServerState(x, state.initial, m, v, state.c_m, c_v, steps, state.round_num)",
        ),
        (
            "ServerState(x, state.initial, m, v, c_m, c_v, steps, state.round_num)",
            "ServerState(x, state.initial, m, v, c_m, state.c_v, steps, state.round_num)",
        ),
        (
            "ServerState(x, state.initial, m, v, c_m, c_v, steps, state.round_num)",
            "ServerState(x, state.initial, m, v, c_m, c_v, state.steps, state.round_num)",
        ),
        ("state.steps + 1 > warmup", "state.steps + 1 >= warmup"),
        ("tf.maximum(mean_certainty, certainty_floor)", "tf.maximum(mean_certainty, 0.0)"),
        (
            "(tf.cast(1.0 / (1.0 - c), tf.float32) for c in (c_m, c_v))",
            "(tf.cast(1.0 / (1.0 - c), tf.float32) for c in (c_m, c_m))",
        ),
        NEXT_STATE,
    ],
    "term": [
        DELTA,
        ("tf.exp(t * (loss - largest))", "tf.exp(-t * (loss - largest))"),
        ("tf.exp(t * (loss - largest))", "tf.ones([])"),
        (
            "ServerState(x, estimate, state.round_num)",
            "ServerState(x, state.estimate, state.round_num)",
        ),
        NEXT_STATE,
    ],
    "afl": [
        DELTA,
        ("share * delta", "delta"),
        (
            "gamma_lambda * tf.cast(losses.loss, tf.float64)",
            "-gamma_lambda * tf.cast(losses.loss, tf.float64)",
        ),
        (
            "ServerState(reported, iterate, mixture, steps, state.round_num)",
            "ServerState(reported, iterate, state.mixture, steps, state.round_num)",
        ),
        (
            "ServerState(reported, iterate, mixture, steps, state.round_num)",
            "ServerState(reported, state.iterate, mixture, steps, state.round_num)",
        ),
        (
            "ServerState(reported, iterate, mixture, steps, state.round_num)",
            "ServerState(reported, iterate, mixture, state.steps, state.round_num)",
        ),
        ROUND,
    ],
    "adafed": [
        (
            "state.weights - (step * d).cast(state.weights)",
            "state.weights + (step * d).cast(state.weights)",
        ),
        (
            "tf.math.divide_no_nan(losses, largest) ** gamma",
            "tf.math.divide_no_nan(losses, largest)",
        ),
        ("u.over(divisor)", "u"),
        ("1.0 / powers.unit", "tf.ones_like(powers.unit)"),
        (
            "inverse * tf.linalg.matvec(axes, tf.where(real > 0, w / lengths, tf.zeros_like(w)))",
            "tf.linalg.matvec(axes, tf.where(real > 0, w / lengths, tf.zeros_like(w)))",
        ),
        (
            "tf.linalg.matvec(axes, inverse * met, transpose_a=True)",
            "tf.linalg.matvec(axes, met, transpose_a=True)",
        ),
        ("Report(-moved, loss)", "Report(moved, loss)"),
        ("targets[k] - vectors.dot(gram[k], a)", "targets[k]"),
        (
            f"rest -= {_PROJECTED}",
            f"rest += {_PROJECTED}",
        ),
        ("at.number >= before_last", "at.number >= 0"),
        (
            "tf.maximum(tf.cast(losses, tf.float64), loss_floor)",
            "tf.cast(losses, tf.float64)",
        ),
        ROUND,
    ],
    "fedmgda_plus": [
        DELTA,
        ("-mixture * inverse", "-mixture"),
        (
            "vectors.box_minimum(cosines, center, epsilon, counts, iterations)",
            "vectors.box_minimum(gram, center, epsilon, counts, iterations)",
        ),
        (
            "vectors.box_minimum(cosines, center, epsilon, counts, iterations)",
            "vectors.box_minimum(cosines, center, 0.5 * epsilon, counts, iterations)",
        ),
        OWN_WEIGHT,
        ("eta * server_lr_decay", "eta"),
        ROUND,
    ],
    "fedfa": [
        DELTA,
        ("-tf.math.log(share + 1e-6)", "tf.exp(1.0) + tf.math.log(share + 1e-6)"),
        (
            "_surprise(1.0 - tf.math.divide_no_nan(own.frequency, total.frequency))",
            "_surprise(tf.math.divide_no_nan(own.frequency, total.frequency))",
        ),
        (
            "ServerState(x, m, counts, state.round_num)",
            "ServerState(x, state.momentum, counts, state.round_num)",
        ),
        (
            "ServerState(x, m, counts, state.round_num)",
            "ServerState(x, m, state.counts, state.round_num)",
        ),
        (
            "momentum * state.momentum + delta",
            "momentum * state.momentum + (1.0 - momentum) * delta",
        ),
        ('accuracy_at == "trained"', "True"),
        NEXT_STATE,
    ],
}
