"""Arguments of TFF's algorithms, and their counterparts here.

The names are those of the builders in `tff.learning.algorithms`, in current and earlier releases.
"""

_CLIENT_OPTIMIZER = (
    "client_optimizer, the name of an optimizer such as 'sgdm' (in tff_algos.build also a "
    "tff.learning.optimizers.Optimizer), with client_learning_rate"
)
_AGGREGATOR = "model_aggregator in tff_algos.build, or aggregator, the name of one of TFF's"
_LOOP = "nothing: clients always loop over their batches in one graph"

# TFF's name → what to give here.
_HERE = {
    "base_optimizer": _CLIENT_OPTIMIZER,
    "base_optimizer_fn": _CLIENT_OPTIMIZER,
    "client_learning_rate_fn": "client_lr_schedule, which may be a function of the round",
    "client_optimizer_fn": _CLIENT_OPTIMIZER,
    "server_optimizer_fn": (
        "server_learning_rate with the method of that server optimizer (fedavg, fedavgm, "
        "fedadagrad, fedadam, fedyogi), or fedavg with server_optimizer, a "
        "tff.learning.optimizers.Optimizer"
    ),
    "model_weighting": "client_weighting, examples or uniform",
    "client_weight_fn": "client_weighting, examples or uniform",
    "aggregation_process": _AGGREGATOR,
    "full_gradient_aggregator": _AGGREGATOR,
    "model_aggregation_factory": _AGGREGATOR,
    "model_update_aggregation_factory": _AGGREGATOR,
    "stateful_delta_aggregate_fn": _AGGREGATOR,
    "metrics_aggregator": "nothing: metrics are weighted means over the cohort's examples",
    "broadcast_process": "nothing: weights are broadcast as they are",
    "model_distributor": "nothing: weights are broadcast as they are",
    "stateful_model_broadcast_fn": "nothing: weights are broadcast as they are",
    "loop_implementation": _LOOP,
    "use_experimental_simulation_loop": _LOOP,
    "proximal_strength": "mu of fedprox",
    "model_fn": "the model as the second argument of tff_algos.build, or model in simulation.run",
}


def of_argument(name: str) -> str | None:
    """Returns the counterpart of a TFF argument as a sentence; `None` for an unknown argument."""
    return f"It is TFF's name; here give {_HERE[name]}." if name in _HERE else None
