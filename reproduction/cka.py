"""Similarity of clients' matrices: linear centered kernel alignment (CKA).

Kornblith, Norouzi, Lee, Hinton: "Similarity of Neural Network Representations Revisited", ICML
2019, arXiv 1905.00414. FedCAda (arXiv 2405.11811) shows it for the clients' first moments in its
Figure 2, which `reproduction.plots.similarities` draws. FedCAda's equation 2 squares both norms in
the denominator, so it does not give 1 for equal matrices. This module uses the standard definition.

    python -m reproduction.cka results/mine --output=figure.png --clients=10

The command compares the states that clients keep between rounds, and prints the mean over pairs of
different clients. By default it compares the first moments of `client_adam`. With
`--client_optimizer=adam --client_optimizer_state=keep` they are `--part=kept/accumulator`.
"""

import os
from collections.abc import Sequence

from tff_suite import command_line, parser, tables

PARSER = parser.Parser(__doc__)
PARSER.positional("run", "folder of a run", many=True)
PARSER.flag("output", help="File to write, as PNG and as PDF.", required=True, path=True)
PARSER.flag("clients", 10, "Clients to compare.", minimum=2)
PARSER.flag("part", "kept/m", "What to compare.")
tables.add_flag(PARSER)

if __name__ == "__main__":
    command_line.begin(PARSER)

import numpy as np

from reproduction import plots, run_folders
from simulation.errors import RunError
from tff_suite import figures


def linear_cka(a: np.ndarray, b: np.ndarray) -> float:
    """Returns ‖AᵀB‖² / (‖AᵀA‖ ‖BᵀB‖) of column-centred matrices, in Frobenius norms.

    It is 1 for equal matrices. It does not change if either matrix is scaled, shifted by a constant
    row, or multiplied by an orthogonal matrix from the right.

    Args:
      a: `[n, d_1]`.
      b: `[n, d_2]`; its rows correspond to those of `a`.

    Returns:
      A number in [0, 1]; NaN if all rows of one are equal.

    Raises:
      ValueError: If these are not two matrices with equal numbers of rows.
    """
    a, b = (np.asarray(m, np.float64) for m in (a, b))
    if a.ndim != 2 or b.ndim != 2 or len(a) != len(b):
        raise ValueError(
            f"CKA needs two matrices with equal numbers of rows, found shapes {a.shape} and "
            f"{b.shape}."
        )
    a, b = (m - m.mean(axis=0) for m in (a, b))
    # Compute the products in the smaller of two equivalent forms, [d_1, d_2] or [n, n].
    if len(a) < max(a.shape[1], b.shape[1]):
        gram_a, gram_b = a @ a.T, b @ b.T
        across = np.sum(gram_a * gram_b)
        norms = np.linalg.norm(gram_a) * np.linalg.norm(gram_b)
    else:
        across = np.linalg.norm(a.T @ b) ** 2
        norms = np.linalg.norm(a.T @ a) * np.linalg.norm(b.T @ b)
    return float(across / norms) if norms else float("nan")


def similarity_of_clients(clients: Sequence[Sequence[np.ndarray]]) -> np.ndarray:
    """Compares clients by arrays shaped like model weights, e.g. their first moments.

    The CKA of two clients is averaged over their corresponding arrays. The last dimension of an
    array (a layer's outputs) becomes the columns of a matrix, all others together its rows. Arrays
    of one dimension (biases) are left out, and so are arrays in which all rows of a client are
    equal, as they are before a layer has learnt anything.

    Args:
      clients: The arrays of each client, of the same shapes for all.

    Returns:
      float64 `[clients, clients]`, symmetric; NaN for pairs without any comparable array.
    """
    matrices = [
        [np.reshape(w, (-1, np.shape(w)[-1])) for w in arrays if np.ndim(w) > 1]
        for arrays in clients
    ]
    result = np.full((len(clients), len(clients)), np.nan)
    for i, own in enumerate(matrices):
        for j, other in enumerate(matrices[: i + 1]):
            values = [linear_cka(a, b) for a, b in zip(own, other, strict=True)]
            values = [v for v in values if np.isfinite(v)]
            if values:
                result[i, j] = result[j, i] = np.mean(values)
    return result


def of_run(folder: str, part: str, number: int) -> np.ndarray:
    """Compares clients of a run by a part of their states.

    Args:
      folder: The run's folder.
      part: Name of the part, as in `client_states.read_all`, without the array's number.
      number: Number of clients to compare: the first ones, by id, that took part in a round.

    Returns:
      As `similarity_of_clients`.

    Raises:
      RunError: If the clients' states lack this part, or fewer than two clients have a state.
    """
    from simulation.records import client_states  # Takes seconds to import.

    path = os.path.join(folder, "client_states.sqlite")
    clients = []
    for state in client_states.read_all(path).values():
        if not state["visits"]:
            continue
        arrays = [v for name, v in state.items() if name.startswith(part + "/")]
        if not arrays:
            held = sorted({name.rpartition("/")[0] or name for name in state})
            raise RunError(f"{path} has no part {part}; it has {', '.join(held)}.")
        clients.append(arrays)
    if len(clients) < 2:
        raise RunError(f"{path} has the state of {len(clients)} client(s); at least 2 are needed.")
    return similarity_of_clients(clients[:number])


@command_line.reported
def main(arguments: list[str]) -> int:
    """Compares clients of runs and draws the result; see the module's docstring.

    Args:
      arguments: Command line without the program's name.

    Returns:
      The exit code: 0, or 1 if a run lacks the necessary states.
    """
    options = PARSER.parse(arguments)
    runs = [run_folders.read_run(folder) for folder in options.run]
    matrices, table = {}, tables.Table(options.json)
    for run, label in zip(runs, run_folders.labels(runs), strict=True):
        name = f"{label}, seed {run.flags['seed']}"
        matrices[name] = of_run(run.folder, options.part, options.clients)
        pairs = matrices[name][~np.eye(len(matrices[name]), dtype=bool)]
        table.add({"run": name, "mean_over_pairs": round(float(np.nanmean(pairs)), 3)})
    files = figures.save(plots.similarities(matrices), options.output)
    table.say("\n" + "\n".join(files))
    table.end()
    return 0


if __name__ == "__main__":
    command_line.run(main)
