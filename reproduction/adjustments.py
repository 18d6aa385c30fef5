"""FedCAda's adjustment functions and their effect on a step: its Figure 3.

    python -m reproduction.adjustments --output=figure.png --rounds=200

The functions are the method's own code. The figure is written as PNG and as PDF.
"""

from tff_suite import command_line, parser

PARSER = parser.Parser(__doc__)
PARSER.flag("output", help="File to write; PNG and PDF are both written.", required=True, path=True)
PARSER.flag("beta1", 0.9, "beta_1.", minimum=0, maximum=1)
PARSER.flag("beta2", 0.99, "beta_2.", minimum=0, maximum=1)
PARSER.flag("rounds", 200, "Rounds to show.", minimum=1, maximum=1_000_000)

if __name__ == "__main__":
    command_line.begin(PARSER)

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from reproduction.looks import looks_of
from tff_suite import figures


def table(beta1: float, beta2: float, rounds: int) -> pd.DataFrame:
    """Computes the adjustment functions with the method's own code.

    Args:
      beta1: β_1.
      beta2: β_2.
      rounds: Number of rounds.

    Returns:
      Columns `option`, `round_num` (t, from 1), `phi1` = φ(β_1^t), `phi2` = φ(β_2^t) and
      `step_factor` = √(1 + φ(β_2^t)) / (1 + φ(β_1^t)), by which the adjustment scales a step
      (methods without adjustment: 1).
    """
    import tensorflow as tf

    from tff_algos.methods import fedcada

    t = np.arange(1, rounds + 1)
    parts = []
    for option, phi in fedcada.ADJUSTMENTS.items():
        phi1, phi2 = (
            phi(tf.constant(beta ** t.astype(np.float64))).numpy() for beta in (beta1, beta2)
        )
        factor = np.sqrt(1 + phi2) / (1 + phi1)
        columns = {"round_num": t, "phi1": phi1, "phi2": phi2, "step_factor": factor}
        parts.append(pd.DataFrame(columns).assign(option=option))
    return pd.concat(parts, ignore_index=True)


@figures.look()
def draw(points: pd.DataFrame) -> Figure:
    """Draws the adjustment functions and the net factor on a step.

    Args:
      points: From `table`.
    """
    figure, axes = figures.panels(3, width=0.85)
    titles = {
        "phi1": "φ(β₁ᵗ)",
        "phi2": "φ(β₂ᵗ)",
        "step_factor": "√(1 + φ(β₂ᵗ)) / (1 + φ(β₁ᵗ))",
    }
    options = list(points.groupby("option", sort=False))
    looks = looks_of(f"option {option}" for option, _ in options)
    for panel, (column, title) in zip(axes[0], titles.items(), strict=True):
        for i, (option, group) in enumerate(options):
            look = looks[f"option {option}"]
            panel.plot(
                group.round_num,
                group[column],
                color=look.colour,
                ls=look.dashes,
                lw=figures.width(i, len(options)),
                label="no adjustment" if option == "none" else f"option {option}",
            )
        panel.set(xlabel="round t", ylabel=title)
    axes[0, 0].set_title("adjustment of the first moment")
    axes[0, 1].set_title("adjustment of the second moment")
    axes[0, 2].set_title("factor on a step")
    figures.legend(figure)
    return figures.fit(figure)


@command_line.reported
def main(arguments: list[str]) -> int:
    """Draws the figure; see the module's docstring.

    Args:
      arguments: Command line without the program's name.

    Returns:
      The exit code: 0, or 1 if the figure cannot be written.
    """
    options = PARSER.parse(arguments)
    figure = draw(table(options.beta1, options.beta2, options.rounds))
    print("\n".join(figures.save(figure, options.output)))
    return 0


if __name__ == "__main__":
    command_line.run(main)
