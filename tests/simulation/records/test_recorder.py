"""What the rounds of a run leave, and what is shown of them."""

import numpy as np
import pytest

from simulation import experiment_flags
from simulation.records import checkpoints, outputs, recorder

FLAGS = (
    "--task=synthetic",
    "--algorithm=fedavg",
    "--total_rounds=9",
    "--clients_per_round=3",
    "--client_batch_size=5",
    "--client_learning_rate=0.05",
)


class Shown:
    def __init__(self):
        self.updates, self.warnings, self.closed = [], [], False

    def update(self, round_num, shown):
        self.updates.append((round_num, dict(shown)))

    def warn(self, text):
        self.warnings.append(text)

    def close(self):
        self.closed = True


@pytest.fixture
def opened(tmp_path):
    """Opens the recorder of one folder after so many rounds."""
    request = experiment_flags.parse([*FLAGS, f"--root_output_dir={tmp_path}"])

    def of(round_num, shown):
        return recorder.Recorder(
            folder,
            request,
            round_num,
            client_states=None,
            progress=lambda done, total: shown,
            shown={"loss": "train/loss", "acc": "eval/acc"},
        )

    with outputs.ExperimentFolder(str(tmp_path), "x") as folder:
        yield of, folder


def test_rows_checkpoints_and_the_latest_numbers(opened):
    of, folder = opened
    shown = Shown()
    with of(0, shown) as taken:
        rows = [{"eval/acc": 0.5}, {"train/loss": 2.0}, {"train/loss": 1.0, "eval/acc": 0.75}]
        for r, values in enumerate(rows):
            taken.record(r, values)
            if r:
                taken.show(r, values)
        taken.checkpoint(2, [np.arange(3)])
        taken.record(3, {"train/loss": 0.5})
        taken.show(3, {"train/loss": 0.5})
        taken.warn("trouble")
        assert not shown.closed
    assert shown.closed and shown.warnings == ["trouble"]
    assert shown.updates == [
        (1, {"loss": 2.0}),
        (2, {"loss": 1.0, "acc": 0.75}),
        (3, {"loss": 0.5, "acc": 0.75}),
    ]
    checkpoint, _ = checkpoints.load_newest(folder.file("checkpoints"))
    assert checkpoint.round_num == 2 and checkpoint.leaves[0].tolist() == [0, 1, 2]
    folder.check_checkpoint(checkpoint)
    with of(2, Shown()) as taken:
        assert [row["train/loss"] for row in taken.kept] == ["", "2.0", "1.0"]


def test_what_was_opened_is_closed_when_a_round_fails(opened):
    of, _folder = opened
    shown = Shown()
    with pytest.raises(KeyError), of(0, shown) as taken:
        taken.record(0, {"eval/acc": 0.5})
        raise KeyError
    assert shown.closed
    with pytest.raises(ValueError, match="closed"):
        taken.record(1, {"eval/acc": 0.5})
