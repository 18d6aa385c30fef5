"""A run of one round, for tests of which only the task or the model matters."""

import simulation


def one_round(task, folder, **changes):
    """Runs a round of FedAvg in `folder`, of two clients with batches of four.

    Args:
      task: As of `simulation.run`.
      folder: The root of output.
      **changes: Further or other settings.
    """
    settings = {
        "task": task,
        "algorithm": "fedavg",
        "total_rounds": 1,
        "clients_per_round": 2,
        "client_batch_size": 4,
        "client_learning_rate": 0.1,
        "root_output_dir": folder,
        "progress": False,
    }
    return simulation.run(**(settings | changes))
