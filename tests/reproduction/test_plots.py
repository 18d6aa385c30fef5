import csv
import itertools
import json
import pathlib
import re

import numpy as np
import pandas as pd
import pytest
from matplotlib import image, pyplot
from matplotlib.text import Text
from scipy import integrate

import tff_algos
from reproduction import adjustments, drawing, plots, quantities, run_folders
from reproduction.kinds import spans
from reproduction.looks import looks_of
from simulation.errors import RunError
from tests import canvas
from tff_suite import figures

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def close_figures():
    yield
    pyplot.close("all")


def write_csv(path, rows):
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def make_run(root, name, rows, clients=None, **flags):
    """Writes the folder of a run; rows are (column → number) of rounds 1, 2, ..."""
    folder = pathlib.Path(root, name)
    folder.mkdir()
    settings = {"algorithm": "fedavg", "seed": 0, "experiment_name": name} | flags
    (folder / "hparams.json").write_text(json.dumps({"flags": settings}))
    write_csv(folder / "metrics.csv", [{"round_num": i, **row} for i, row in enumerate(rows, 1)])
    if clients is not None:
        of_clients = [
            {"client_id": f"0{k}", "train_examples": 3, "test_examples": 2, "accuracy": a}
            for k, a in enumerate(clients)
        ]
        write_csv(folder / "client_metrics.csv", of_clients)
    return str(folder)


def accuracies(*values):
    return [{"eval/accuracy": v} for v in values]


def lines(axes):
    return {line.get_label(): line.get_xydata() for line in axes.get_lines()}


# Runs as tables.


def test_a_run_is_read_as_written(tmp_path):
    rows = [{"train/loss": 2.5, "eval/accuracy": ""}, {"train/loss": 1.5, "eval/accuracy": 0.25}]
    run = run_folders.read_run(make_run(tmp_path, "a", rows, clients=[0.5, ""], fedavg_x=3))
    assert run.method == "fedavg" and run.flags["fedavg_x"] == 3
    assert run.metrics.round_num.tolist() == [1, 2]
    assert np.isnan(run.metrics["eval/accuracy"][0]) and run.metrics["eval/accuracy"][1] == 0.25
    assert run.clients.client_id.tolist() == ["00", "01"]
    assert run_folders.client_values([run], "accuracy")["fedavg"].tolist() == [0.5]


def test_runs_are_named_by_what_differs_within_a_method(tmp_path):
    given = [
        ("a", dict(algorithm="fedadam", seed=0, fedadam_tau=0.1)),
        ("b", dict(algorithm="fedadam", seed=1, fedadam_tau=0.1)),
        ("c", dict(algorithm="fedadam", seed=0, fedadam_tau=0.2)),
        ("d", dict(algorithm="qfedavg", seed=0, qfedavg_q=1.0)),
    ]
    runs = [run_folders.read_run(make_run(tmp_path, n, accuracies(0.1), **f)) for n, f in given]
    assert run_folders.labels(runs) == [
        "fedadam tau=0.1",
        "fedadam tau=0.1",
        "fedadam tau=0.2",
        "qfedavg",
    ]
    points = run_folders.curve(runs, "eval/accuracy")
    assert points.groupby("method", sort=False).seed.apply(list).to_dict() == {
        "fedadam tau=0.1": [0, 1],
        "fedadam tau=0.2": [0],
        "qfedavg": [0],
    }


def test_the_mean_of_the_last_rounds(tmp_path):
    """Blank rounds don't count, and no more than a run's second half does."""
    rows = accuracies(0.1, "", 0.2, 0.3, "", 0.5)
    run = run_folders.read_run(make_run(tmp_path, "a", rows))
    for rounds, mean in ((1, 0.5), (2, 0.5), (3, 0.4), (4, 0.4), (100, 0.4)):
        assert run_folders.mean_of_last(run, "eval/accuracy", rounds) == pytest.approx(mean)
        assert run_folders.final(run, "eval/accuracy", rounds) == pytest.approx(mean)
    assert np.isnan(run_folders.mean_of_last(run, "eval/loss", 1))


@pytest.mark.parametrize("value", ["inf", "nan"])
def test_a_run_that_diverged_has_no_mean(tmp_path, value):
    run = run_folders.read_run(make_run(tmp_path, "a", accuracies(0.1, 0.1, value, 0.5)))
    assert np.isnan(run_folders.final(run, "eval/accuracy", 2))
    assert run_folders.final(run, "eval/accuracy", 1) == 0.5


def test_a_folder_is_read_once_until_it_changes(tmp_path, monkeypatch):
    read, original = [], run_folders.metrics_csv.read_csv
    monkeypatch.setattr(
        run_folders.metrics_csv, "read_csv", lambda path: read.append(path) or original(path)
    )
    folder = make_run(tmp_path, "a", accuracies(0.1, 0.2))
    assert run_folders.opened(folder).last_round == run_folders.opened(folder).last_round == 2
    assert len(read) == 1
    with open(tmp_path / "a" / "metrics.csv", "a") as file:
        file.write("3,0.3\n")
    assert run_folders.opened(folder).last_round == 3 and len(read) == 2
    (tmp_path / "a" / "metrics.csv").unlink()
    assert run_folders.opened(folder).last_round == 0


@pytest.mark.parametrize(
    ("read", "reason"),
    [
        (
            lambda run: run_folders.curve([run], "eval/acuracy"),
            "no column eval/acuracy in metrics.csv; the nearest are eval/accuracy",
        ),
        (
            lambda run: run_folders.curve([run], "train/direction_norm"),
            "no column train/direction_norm in metrics.csv; docs/metrics.md says what writes it",
        ),
        (lambda run: run_folders.client_values([run], "accuracy"), "has not ended"),
        (
            lambda run: run_folders.grid([run], "eval/accuracy", 1, tau="{method}_tau"),
            "--fedavg_tau",
        ),
        (lambda run: run_folders.tracked_losses([run]), "--track_clients"),
    ],
)
def test_what_a_run_lacks_is_named(tmp_path, read, reason):
    run = run_folders.read_run(make_run(tmp_path, "a", accuracies(0.1)))
    with pytest.raises(RunError, match=reason):
        read(run)


def test_a_folder_without_a_run_is_an_error(tmp_path):
    with pytest.raises(RunError, match=r"is not the folder of a run"):
        run_folders.read_run(str(tmp_path))
    (tmp_path / "hparams.json").write_text("{")
    with pytest.raises(RunError, match=r"hparams\.json is damaged"):
        run_folders.read_run(str(tmp_path))


@pytest.mark.parametrize("wrong", ["--smooth=0", "--last_rounds=0", "--last_rounds=1000000000000"])
def test_numbers_out_of_range_are_refused(tmp_path, capsys, wrong):
    assert plots.main(["curves", str(tmp_path), f"--output={tmp_path / 'x'}", wrong]) == 2
    assert f"error: {wrong} must be in" in capsys.readouterr().err


def test_runs_that_give_no_figure_are_one_line(tmp_path, capsys):
    same = [make_run(tmp_path, name, accuracies(0.1, 0.2)) for name in "ab"]
    blank = make_run(tmp_path, "d", accuracies(""))
    endless = make_run(tmp_path, "c", accuracies(0.1), clients=[0.5, "inf"])
    for kind, runs, words in (
        ("curves", same, "the same settings and the same seed"),
        ("density", [endless], "missing or infinite"),
        ("rates", same, "--client_learning_rate is missing or not a number"),
        ("curves", [blank], "No run has a value of accuracy"),
    ):
        assert plots.main([kind, *runs, f"--output={tmp_path / 'x'}"]) == 1
        err = capsys.readouterr().err
        assert words in err and len(err.splitlines()) == 1


def test_clients_of_runs_that_are_alike_are_told(tmp_path, capsys):
    same = [make_run(tmp_path, name, accuracies(0.1), clients=[0.5, 0.7]) for name in "ab"]
    assert plots.main(["density", *same, f"--output={tmp_path / 'x'}"]) == 0
    assert "/b have the same settings and the same seed. The fig" in capsys.readouterr().out


# Figures.


def points_of(values, method="fedavg", seed=0):
    columns = {"round_num": range(1, len(values) + 1), "value": values}
    return pd.DataFrame(columns).assign(method=method, seed=seed)


def test_curves_show_mean_and_spread_over_seeds():
    points = pd.concat(
        [points_of([1.0, 2.0]), points_of([3.0, 2.0], seed=1), points_of([5.0, 6.0], "fedadam")]
    )
    axes = plots.curves(points, quantity=quantities.Quantity("accuracy")).axes[0]
    drawn = lines(axes)
    np.testing.assert_allclose(drawn["FedAvg"], [[1, 2], [2, 2]])
    np.testing.assert_allclose(drawn["FedAdam"], [[1, 5], [2, 6]])
    # One band: fedadam has one seed. Sample deviation of 1 and 3 is √2, of 2 and 2 it is 0.
    (band,) = axes.collections
    at_one = band.get_paths()[0].vertices
    at_one = at_one[at_one[:, 0] == 1][:, 1]
    assert at_one.min() == pytest.approx(2 - 2**0.5) and at_one.max() == pytest.approx(2 + 2**0.5)


def test_a_curve_ends_where_the_first_of_its_seeds_does():
    points = pd.concat([points_of([1.0, 2.0, 3.0]), points_of([3.0, 4.0], seed=1)])
    quantity = quantities.Quantity("accuracy")
    axes = plots.curves(points, quantity=quantity, protocol=3).axes[0]
    np.testing.assert_allclose(lines(axes)["FedAvg"], [[1, 2], [2, 3]])
    assert axes.get_xlabel() == "round (2 of the protocol's 3)"


def test_a_curve_has_the_rounds_that_all_of_its_seeds_have():
    """One seed was evaluated in other rounds, or has NaN: the mean of the rest is another's."""
    often, rarely = points_of([1.0, 2.0, 3.0, 4.0]), points_of([3.0, 5.0, np.nan, 6.0], seed=1)
    quantity = quantities.Quantity("accuracy")
    for some in (rarely, rarely.drop(2)):
        points = pd.concat([often, some])
        axes = plots.curves(points, quantity=quantity).axes[0]
        np.testing.assert_allclose(lines(axes)["FedAvg"], [[1, 2], [2, 3.5], [4, 5]])
        of_client = plots.client_losses(points.assign(client="7")).axes[0]
        np.testing.assert_allclose(lines(of_client)["client 7"], [[1, 2], [2, 3.5], [4, 5]])
    with pytest.raises(RunError, match="runs of fedavg have no round in which all seeds"):
        plots.curves(pd.concat([often[:1], rarely[1:]]), quantity=quantity)


def legend_texts(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_curves_leave_out_infinite_values_and_say_so():
    points = pd.concat([points_of([3.0, np.inf, 2.0]), points_of([1.0, 2.0, 2.0], seed=1)])
    figure = plots.curves(points, quantity=quantities.Quantity("loss"))
    np.testing.assert_allclose(lines(figure.axes[0])["FedAvg"], [[1, 2], [3, 2]])
    assert "infinite values are not shown" in legend_texts(figure)
    with pytest.raises(RunError, match="No run has a finite value of loss"):
        plots.curves(points_of([np.inf, np.nan]), quantity=quantities.Quantity("loss"))


def test_a_logarithmic_axis_says_what_it_cannot_show():
    loss = quantities.Quantity("loss")
    below = "values of zero or below are off the axis"
    assert below in legend_texts(plots.curves(points_of([0.0, 1.0]), quantity=loss, log=True))
    assert below not in legend_texts(plots.curves(points_of([0.5, 1.0]), quantity=loss, log=True))
    with pytest.raises(RunError, match=r"No value of loss is above zero.*without --log"):
        plots.curves(points_of([0.0, -1.0]), quantity=loss, log=True)


def test_curves_are_smoothed_within_a_seed():
    """Over values: an evaluation every ten rounds has ten rounds between two of them."""
    points = points_of([0.0, 2.0, 4.0])
    points = points.assign(round_num=10 * points.round_num)
    figure = plots.curves(points, quantity=quantities.Quantity("loss"), smooth=2)
    np.testing.assert_allclose(lines(figure.axes[0])["FedAvg"][:, 1], [0, 1, 3])
    assert "running mean of 2 values" in legend_texts(figure)


def test_a_figure_of_a_mean_over_settings_is_refused(tmp_path, capsys):
    """Two values of τ at the same rates: neither is what a cell of the map or a point shows."""
    rates = {"client_learning_rate": 0.1, "server_learning_rate": 1.0, "fedavg_alpha": 1}
    row = {"eval/accuracy": 0.5, "eval/loss": 1.0}
    row |= {"fairness/accuracy_avg_u": 0.5, "fairness/accuracy_error_rsd_u": 1.0}
    runs = [make_run(tmp_path, f"t{tau}", [row], fedavg_tau=tau, **rates) for tau in (1, 2)]
    for kind in ("rates", "best_rates", "pareto"):
        assert plots.main([kind, *runs, f"--output={tmp_path / 'x'}"]) == 1
        err = capsys.readouterr().err
        assert "t1 and " in err and "t2 differ in fedavg_tau, and the figure would" in err
        assert len(err.splitlines()) == 1
    assert plots.main(["tau", *runs, f"--output={tmp_path / 'x'}"]) == 0


def test_density_integrates_to_one_and_equal_clients_are_a_line():
    rng = np.random.default_rng(0)
    values = {"fedavg": rng.normal(0.5, 0.1, 200), "fair": np.full(5, 0.7)}
    drawn = lines(plots.densities(values, quantity=quantities.of_column("accuracy")).axes[0])
    x, y = drawn["FedAvg"].T
    assert integrate.trapezoid(y, x) == pytest.approx(1, abs=0.02)
    assert np.sum(x * y) / np.sum(y) == pytest.approx(50, abs=2)
    assert drawn["fair"][:, 0].tolist() == [70, 70]


def test_density_ends_where_values_must_and_still_integrates_to_one():
    """Half of the clients have an accuracy of 1: their kernels are folded back."""
    values = {"fedavg": np.concatenate([np.ones(50), np.linspace(0.6, 1, 50)])}
    figure = plots.densities(values, quantity=quantities.of_column("accuracy"))
    x, y = lines(figure.axes[0])["FedAvg"].T
    assert x.max() == 100 and integrate.trapezoid(y, x) == pytest.approx(1, abs=0.02)


def test_pareto_front_is_what_no_point_beats():
    error, rsd = [0.1, 0.2, 0.3, 0.2, 0.1], [0.9, 0.5, 0.6, 0.5, 1.0]
    # 2 is beaten by 1; 4 by 0; 1 and 3 are equal and stay.
    assert plots.pareto_optimal(error, rsd).tolist() == [True, True, False, True, False]
    table = pd.DataFrame({"mean_error": error[:3], "rsd": rsd[:3], "parameter": [4.0, 1.0, 2.0]})
    axes = plots.pareto(table.assign(method="a"), parameter="alpha").axes[0]
    drawn = lines(axes)
    np.testing.assert_allclose(drawn["a"], [[0.2, 0.5], [0.3, 0.6], [0.1, 0.9]])
    np.testing.assert_allclose(drawn["Pareto front"], [[0.1, 0.9], [0.2, 0.5]])
    assert {t.get_text() for t in axes.texts} == {"alpha=1", "alpha=2", "alpha=4"}


def test_improved_clients_are_percent():
    axes = plots.improved(points_of([0.5, 1.0])).axes[0]
    np.testing.assert_allclose(lines(axes)["FedAvg"][:, 1], [50, 100])


def test_directions_are_relative_to_each_runs_largest():
    points = pd.concat([points_of([4.0, 1.0, np.inf]), points_of([1.0, 10.0], "fedadam")])
    drawn = lines(plots.direction_norms(points).axes[0])
    np.testing.assert_allclose(drawn["FedAvg"][:, 1], [1, 0.25])
    np.testing.assert_allclose(drawn["FedAdam"][:, 1], [0.1, 1])


def test_clients_losses_have_a_panel_for_each_method():
    points = pd.concat(
        [
            points_of([3.0, 2.0]).assign(client="7"),
            points_of([2.0, 1.0]).assign(client="x"),
            points_of([1.0], "adafed").assign(client="7"),
        ]
    )
    figure = plots.client_losses(points)
    assert [a.get_title("left") for a in figure.axes] == ["FedAvg", "AdaFed"]
    np.testing.assert_allclose(lines(figure.axes[0])["client x"][:, 1], [2, 1])


def test_infinite_losses_of_clients_are_left_out_and_said():
    points = points_of([3.0, np.inf, 2.0]).assign(client="7")
    figure = plots.client_losses(points)
    np.testing.assert_allclose(lines(figure.axes[0])["client 7"][:, 1], [3, 2])
    assert "infinite values are not shown" in legend_texts(figure)


def rates(**values):
    rows = [
        dict(
            method="m", seed=0, client_learning_rate=c, server_learning_rate=s, value=v, loss=1 - v
        )
        for c, s, v in values["rows"]
    ]
    return pd.DataFrame(rows)


GRID = [(0.1, 1, 0.5), (0.1, 10, 0.7), (1, 1, 0.6), (1, 10, np.nan), (10, 1, 0.05), (10, 10, 0.0)]


def test_heat_map_has_a_cell_for_each_pair_of_rates():
    axes = plots.rate_heat_maps(rates(rows=GRID), label="accuracy").axes[0]
    shown = axes.get_images()[0].get_array()
    np.testing.assert_allclose(shown.filled(np.nan), [[0.5, 0.6, 0.05], [0.7, np.nan, 0.0]])
    assert [t.get_text() for t in axes.get_xticklabels()] == ["-1", "0", "1"]
    assert [t.get_text() for t in axes.texts] == ["0.5", "0.6", "0.05", "0.7", "×", "0"]


def test_heat_map_says_diverged_of_runs_alone():
    """A pair of rates that nobody tried has no run that could have diverged."""
    axes = plots.rate_heat_maps(rates(rows=GRID[1:]), label="accuracy").axes[0]
    assert [t.get_text() for t in axes.texts] == ["0.6", "0.05", "0.7", "×", "0"]


def test_a_setting_at_which_a_seed_diverged_has_no_mean():
    rows = [(1, 0, 0.5), (1, 1, 0.7), (2, 0, 0.9), (2, 1, np.nan)]
    points = pd.DataFrame(rows, columns=["setting", "seed", "value"]).assign(method="m")
    axes = plots.by_setting(points, setting="steps", ylabel="accuracy").axes[0]
    np.testing.assert_allclose(axes.get_lines()[0].get_xydata(), [[1, 0.6]])


def test_best_server_rate_leaves_out_what_did_not_learn():
    drawn = lines(plots.best_server_rates(rates(rows=GRID)).axes[0])
    # At a client rate of 10 the loss stays above 0.9 of the worst.
    np.testing.assert_allclose(drawn["m"], [[0.1, 10], [1, 1]])
    drawn = lines(plots.best_server_rates(rates(rows=GRID).drop(columns="loss")).axes[0])
    np.testing.assert_allclose(drawn["m"][-1], [10, 1])


def test_best_server_rates_of_models_that_did_not_learn_are_one_line():
    with pytest.raises(ValueError, match=r"^the best loss at every client rate is within 10 % of"):
        plots.best_server_rates(rates(rows=GRID).assign(loss=1.0))


def test_tau_takes_the_best_of_the_other_settings_by_its_mean_over_seeds():
    rows = [
        # Each of the two settings has the best single run somewhere; means decide.
        dict(tau=0.1, client_learning_rate=1, seed=0, value=0.9),
        dict(tau=0.1, client_learning_rate=1, seed=1, value=0.1),
        dict(tau=0.1, client_learning_rate=2, seed=0, value=0.6),
        dict(tau=0.1, client_learning_rate=2, seed=1, value=0.6),
        dict(tau=0.01, client_learning_rate=1, seed=0, value=np.nan),
        dict(tau=0.01, client_learning_rate=2, seed=0, value=0.3),
    ]
    points = pd.DataFrame(rows).assign(method="m")
    drawn = lines(plots.tau_curves(points, ylabel="accuracy").axes[0])
    np.testing.assert_allclose(drawn["m"], [[0.01, 0.3], [0.1, 0.6]])
    drawn = lines(plots.tau_curves(points, ylabel="", higher_is_better=False).axes[0])
    np.testing.assert_allclose(drawn["m"], [[0.01, 0.3], [0.1, 0.5]])


def test_similarities_have_a_panel_for_each_method():
    figure = plots.similarities({"a": np.eye(3), "b": np.ones((3, 3))})
    np.testing.assert_array_equal(figure.axes[0].get_images()[0].get_array(), np.eye(3))
    assert figure.axes[1].get_title("left") == "b"


def test_files_are_png_and_pdf_and_equal_figures_equal_files(tmp_path):
    def write(name):
        figure = plots.improved(points_of([0.5, 1.0]))
        return figures.save(figure, str(tmp_path / "new" / name))

    paths = write("a.pdf")
    assert [pathlib.Path(p).name for p in paths] == ["a.png", "a.pdf"]
    contents = [pathlib.Path(p).read_bytes() for p in paths]
    assert contents[0].startswith(b"\x89PNG") and contents[1].startswith(b"%PDF")
    assert [pathlib.Path(p).read_bytes() for p in write("b")] == contents
    assert pathlib.Path(write("v1.5")[0]).name == "v1.5.png"


# The command.


def test_every_kind_draws_from_folders_of_runs(tmp_path, capsys):
    folders = []
    for i, (tau, client, server) in enumerate([(0.1, 1, 1), (0.01, 1, 2), (0.01, 2, 2)]):
        row = {
            "train/direction_norm": 2.0,
            "eval/accuracy": 0.5 + 0.1 * i,
            "eval/loss": 0.5 - 0.1 * i,
            "fairness/accuracy_avg_u": 0.5,
            "fairness/accuracy_error_rsd_u": 0.3 + i,
            "fairness/improved_fraction": 0.75,
            "client_loss/7": 1.0,
        }
        folders.append(
            make_run(
                tmp_path,
                f"run{i}",
                [row, row],
                clients=[0.5, 0.6, 0.8],
                algorithm="fedadam",
                fedadam_tau=tau,
                client_learning_rate=client,
                server_learning_rate=server,
            )
        )
    for kind in plots._KINDS:
        output = tmp_path / f"{kind}.png"
        # Other figures would show the mean of the two runs with one tau, and refuse it.
        some = folders if kind == "rates" else folders[:2]
        assert plots.main([kind, *some, f"--output={output}", "--parameter=tau"]) == 0, kind
        assert output.stat().st_size > 5000 and output.with_suffix(".pdf").exists()
    assert str(tmp_path / "tau.pdf") in capsys.readouterr().out


def test_a_label_says_over_how_many_rounds_a_mean_is(tmp_path):
    """Half of four rounds; the run that diverged after one has none."""
    runs = []
    for i, values in enumerate(([0.1, 0.2, 0.3, 0.4], [float("nan")])):
        rates = {"client_learning_rate": 0.1, "server_learning_rate": 10.0**i}
        folder = make_run(tmp_path, f"r{i}", accuracies(*values), algorithm="fedadam", **rates)
        runs.append(run_folders.read_run(folder))
    options = plots.PARSER.parse(["rates", "run", "--output=x", "--last_rounds=100"])
    figure = plots._draw(options, runs)
    labels = [" ".join(axes.get_ylabel().split()) for axes in figure.axes]
    assert "accuracy (%), mean of the last 2 rounds" in labels


def test_pareto_points_are_means_over_seeds(tmp_path):
    runs = []
    for seed, error in ((0, 0.2), (1, 0.4)):
        row = {"fairness/accuracy_avg_u": 1 - error, "fairness/accuracy_error_rsd_u": error / 2}
        folder = make_run(
            tmp_path, f"r{seed}", [row], seed=seed, algorithm="adafedadam", adafedadam_alpha=2
        )
        runs.append(run_folders.read_run(folder))
    options = plots.PARSER.parse(["pareto", "run", "--output=x"])
    (point,) = plots._pareto_points(runs, options).to_dict("records")
    assert point == {
        "method": "adafedadam",
        "parameter": 2,
        "mean_error": pytest.approx(30),
        "rsd": pytest.approx(0.15),
    }


def _of_rates(tmp_path, metric, ended=None):
    """Four runs, whose errors are the least where both rates are low."""
    folders = []
    for i, (client, server, error) in enumerate(
        [(0.01, 0.1, 0.1), (0.01, 1, 0.9), (0.1, 0.1, 0.2), (0.1, 1, 0.3)]
    ):
        rates = {"client_learning_rate": client, "server_learning_rate": server}
        rows = [{f"eval/{metric}": error + 1, "eval/loss": error}, {f"eval/{metric}": error}]
        rows[1]["eval/loss"] = error
        folder = make_run(tmp_path, f"r{i}", rows, algorithm="fedadam", **rates)
        if ended:
            best = {"round_num": 2, f"eval/{metric}": error}
            summary = {"rounds": 2, "mean_round_seconds": 1.0, "final": {}, "best": best}
            pathlib.Path(folder, "summary.json").write_text(json.dumps(summary))
        folders.append(folder)
    return folders


@pytest.mark.parametrize(
    ("metric", "ended", "flags", "lower"),
    [
        ("mse", False, [], True),
        ("mine", True, [], True),  # By the best round that the task chose.
        ("mine", True, ["--nolower_is_better"], False),
        ("mine", False, ["--lower_is_better"], True),
        ("accuracy", False, [], False),
    ],
)
def test_the_best_rates_are_those_of_the_metrics_direction(
    tmp_path, monkeypatch, metric, ended, flags, lower
):
    drawn = {}
    best = plots.best_server_rates

    def noted(points, **how):
        drawn.update(how)
        return best(points, **how)

    monkeypatch.setattr(plots, "best_server_rates", noted)
    folders = _of_rates(tmp_path, metric, ended)
    output = f"--output={tmp_path / 'x'}"
    flags = [f"--column=eval/{metric}", *flags]
    assert plots.main(["best_rates", *folders, output, *flags]) == 0
    assert drawn == {"higher_is_better": not lower, "title": None}


def test_a_direction_that_nothing_tells_is_asked_for(tmp_path, capsys):
    folders = _of_rates(tmp_path, "mine")
    assert plots.main(["rates", *folders, f"--output={tmp_path / 'x'}", "--column=eval/mine"]) == 1
    assert "add --lower_is_better or --nolower_is_better." in capsys.readouterr().err


def test_pareto_of_an_error_is_no_percentage(tmp_path):
    rows = [{"fairness/mse_avg_u": 0.02, "fairness/mse_error_rsd_u": 0.5}]
    folder = make_run(tmp_path, "a", rows, algorithm="adafedadam", adafedadam_alpha=2)
    options = plots.PARSER.parse(["pareto", "run", "--output=x", "--column=mse"])
    runs = [run_folders.read_run(folder)]
    (point,) = plots._pareto_points(runs, options).to_dict("records")
    assert point["mean_error"] == pytest.approx(0.02)
    assert plots._draw(options, runs).axes[0].get_xlabel() == "mean mse of clients"


def test_diverged_seeds_are_not_in_a_mean_over_seeds(tmp_path, capsys):
    folders = [make_run(tmp_path, f"r{s}", accuracies(0.1, 0.2), seed=s) for s in (0, 1)]
    pathlib.Path(folders[1], "diverged.json").write_text('{"reason": "too far"}')
    assert plots.main(["curves", *folders, f"--output={tmp_path / 'x'}"]) == 0
    assert "Not drawn, since they diverged: fedavg (seed 1) after round 2." in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize("diverged", [0, 1])
def test_a_run_is_drawn_though_its_twin_diverged(tmp_path, diverged):
    """Both have the same settings and seed, such as before and after a change of code."""
    folders = [make_run(tmp_path, f"r{i}", accuracies(i / 8), seed=0) for i in (0, 1)]
    folders += [make_run(tmp_path, "other", accuracies(0.5), seed=1)]
    pathlib.Path(folders[diverged], "diverged.json").write_text('{"reason": "too far"}')
    runs = [run_folders.read_run(folder) for folder in folders]
    points, left_out = run_folders.without_diverged(runs, "eval/accuracy")
    assert points.value.tolist() == [(1 - diverged) / 8, 0.5]
    assert left_out == ["fedavg (seed 0) after round 1"]


def test_a_run_that_lacks_what_is_drawn_is_one_line(tmp_path, capsys):
    folder = make_run(tmp_path, "a", accuracies(0.1))
    assert plots.main(["improved", folder, f"--output={tmp_path / 'x'}"]) == 1
    assert capsys.readouterr().err == (
        f"error: {folder} has no column fairness/improved_fraction in metrics.csv; "
        "docs/metrics.md says what writes it.\n"
    )
    assert not (tmp_path / "x.png").exists()
    assert plots.main(["curves", f"--output={tmp_path / 'x'}"]) == 2
    assert "RUN is missing" in capsys.readouterr().err


# What can be seen of each kind, with long names and many rows.

LONG = "a title that is far too long for its figure and goes on " * 4
# As many rows as one figure holds.
MANY = [*tff_algos.names()[:34], *(f"fedavg with_a_long_setting={i}" for i in range(3))]
SWEPT = [f"fedda_adam fedda_local_steps={i} client_learning_rate=0.0316228" for i in range(5)]


def many_points(names=MANY, seeds=2, rounds=40, client=None):
    """Returns curves that all rise alike, so that only their last rounds differ."""
    parts = []
    for i, name in enumerate(names):
        for seed in range(seeds):
            at = np.arange(rounds)
            value = (0.9 + 0.001 * i + 0.002 * seed) * (1 - np.exp(-at / 3))
            part = pd.DataFrame({"round_num": at, "value": value})
            parts.append(part.assign(method=name, seed=seed, client=client))
    return pd.concat(parts)


def grid_points(methods=("fedadagrad", "fedadam", "fedyogi", "fedavgm", "fedavg")):
    rng = np.random.default_rng(0)
    rates = 10.0 ** np.arange(-3, 1.5, 0.5)
    rows = [
        dict(method=m, seed=0, client_learning_rate=c, server_learning_rate=s, tau=t)
        for m, c, s, t in itertools.product(methods, rates[:8], rates, (1e-5, 1e-3))
    ]
    value = rng.uniform(0, 100, len(rows))
    value[::7] = np.nan
    return pd.DataFrame(rows).assign(value=value)


def summary_points(names=MANY):
    rows = []
    for i, (name, panel) in enumerate(itertools.product(names, ("accuracy (%)", LONG[:90], "c"))):
        one = {"row": name, "panel": panel, "status": "diverged (seed 1)", "spread": 0.5}
        mean = 90 + i / 10 if i % 7 else np.nan
        rows += [{**one, "kind": "mean", "value": mean}, {**one, "kind": "published", "value": 91}]
        rows += [{**one, "kind": "seed", "value": 90 + i / 10 + k} for k in range(3)]
    return pd.DataFrame(rows)


ACCURACY = quantities.of_column("fairness/accuracy_avg_w")
DRAWN = {
    "curves": lambda: plots.curves(
        many_points(),
        quantity=ACCURACY,
        title=LONG,
        smooth=3,
        published=dict.fromkeys(MANY, 91.0),
        protocol=3000,
    ),
    "curves of one method": lambda: plots.curves(
        many_points(SWEPT, 1, 5), quantity=quantities.Quantity(LONG), title=LONG
    ),
    "curves of losses": lambda: plots.curves(
        many_points(SWEPT).eval("value = 1 - 0.99 * value"),
        quantity=quantities.of_column("train/loss"),
        log=True,
    ),
    "curves of one round": lambda: plots.curves(many_points(["fedavg"], 1, 1), quantity=ACCURACY),
    "summary": lambda: plots.summary(summary_points(), title=LONG),
    "summary of one row": lambda: plots.summary(summary_points(SWEPT[:1])),
    "density": lambda: plots.densities(
        {name: np.linspace(0.5, 1, 30 + i) for i, name in enumerate(MANY)},
        quantity=ACCURACY,
        title=LONG,
    ),
    "pareto": lambda: plots.pareto(
        pd.DataFrame(
            {
                "method": np.repeat(SWEPT, 4),
                "parameter": [1.0, 2.0, 4.0, np.nan] * 5,
                "mean_error": np.linspace(5, 15, 20),
                "rsd": np.linspace(1.6, 1.2, 20),
            }
        ),
        parameter="alpha",
        title=LONG,
    ),
    "improved": lambda: plots.improved(many_points(SWEPT), title=LONG),
    "direction": lambda: plots.direction_norms(many_points(SWEPT), title=LONG),
    "client losses": lambda: plots.client_losses(
        pd.concat(many_points(MANY[:4], client=c) for c in ("7", "a client with a long name" * 3)),
        title=LONG,
    ),
    "rates": lambda: plots.rate_heat_maps(
        grid_points().drop(columns="tau"), label=LONG, title=LONG
    ),
    "best rates": lambda: plots.best_server_rates(grid_points().drop(columns="tau"), title=LONG),
    "tau": lambda: plots.tau_curves(grid_points(), ylabel=LONG, title=LONG),
    "setting": lambda: plots.by_setting(
        pd.concat(
            pd.DataFrame({"setting": [1, 2, 5, 10, 20], "value": np.arange(5.0) + seed}).assign(
                method=name, seed=seed
            )
            for name in MANY
            for seed in range(2)
        ),
        setting=LONG,
        ylabel=LONG,
        title=LONG,
    ),
    "similarities": lambda: plots.similarities({name: np.eye(10) for name in MANY[:7]}, label=LONG),
    "adjustments": lambda: adjustments.draw(
        pd.DataFrame({"option": list("1234"), "round_num": 1, "phi1": 1, "phi2": 1})
        .assign(step_factor=1)
        .replace({"option": "4"}, "none")
    ),
}


# Of the others, each is laid out as one of these is.
@pytest.mark.quick_cases("curves", "summary", "density", "client losses", "rates", "similarities")
@pytest.mark.parametrize("kind", DRAWN)
def test_all_of_a_figure_can_be_seen(kind):
    assert canvas.hidden(DRAWN[kind]()) == []


def test_curves_that_end_alike_are_enlarged():
    figure = plots.curves(many_points(["fedavg", "fedprox"]), quantity=ACCURACY)
    whole, part = figure.axes
    assert part.get_title("left") == "second half, enlarged"
    low, high = part.get_ylim()
    assert 85 < low < high <= 100 and part.get_xlim()[0] == 19.5
    assert whole.get_ylim()[0] <= 0


def test_a_curve_says_what_its_bands_marks_and_rounds_are():
    figure = plots.curves(
        many_points(["fedavg", "fedprox"], rounds=10),
        quantity=quantities.of_column("eval/accuracy"),
        published={"fedavg": 93.5},
        protocol=300,
    )
    (legend,) = figure.legends
    words = [" ".join(text.get_text().split()) for text in legend.get_texts()]
    assert words == [
        "FedAvg",
        "FedProx",
        "mean ± one standard deviation over 2 seeds",
        "published, after 300 rounds",
    ]
    assert figure.axes[0].get_xlabel() == "round (9 of the protocol's 300)"
    assert figure.axes[0].get_ylabel() == "accuracy (%)"
    marks = [line for line in figure.axes[0].get_lines() if line.get_gid() == "published"]
    assert [mark.get_ydata()[0] for mark in marks] == [93.5]


def published_marks(axes):
    """Returns the colour, the shape and the value of each published value's mark."""
    marks = [line for line in axes.get_lines() if line.get_gid() == "published"]
    return [(m.get_markeredgecolor(), m.get_marker(), float(m.get_ydata()[0])) for m in marks]


def test_distant_published_values_stay_out_of_the_enlarged_panel():
    """A mark far off its panel left no room for the layout, which then was none at all."""
    published = {"fedavg": 20.0, "fedprox": 90.2}
    points = many_points(["fedavg", "fedprox"])
    figure = plots.curves(points, quantity=ACCURACY, title=LONG, published=published)
    assert canvas.hidden(figure) == []
    whole, part = figure.axes
    assert [value for *_, value in published_marks(whole)] == [20.0, 90.2]
    assert [value for *_, value in published_marks(part)] == [90.2]


def test_published_values_that_coincide_are_all_seen_and_look_like_their_rows():
    names = [f"adafed gamma={g}" for g in range(8)]
    published = dict.fromkeys(names, 90.0)
    figure = plots.curves(many_points(names), quantity=ACCURACY, published=published)
    assert canvas.hidden(figure) == [], "no mark lies on another"
    looks = looks_of(names).values()
    shown = published_marks(figure.axes[0])
    assert [mark[:2] for mark in shown] == [(look.colour, look.mark) for look in looks]


def test_a_curve_far_off_the_others_hides_no_differences_between_them():
    points = many_points(["fedavg", "fedprox", "fedadam", "fednova"])
    points.loc[points.method == "fednova", "value"] *= 0.5
    figure = plots.curves(points, quantity=ACCURACY)
    _whole, part = figure.axes
    low, high = part.get_ylim()
    assert 85 < low < high <= 100
    words = [" ".join(text.get_text().split()) for text in figure.legends[0].get_texts()]
    assert "beyond the enlarged panel: FedNova" in words
    assert canvas.hidden(figure) == [], "what is cut is told"


def test_most_rows_are_those_that_lie_together():
    of_rows = {"a": (1.0, 2.0), "b": (1.5, 2.5), "c": (2.0, 2.2), "d": (50.0, 60.0)}
    assert spans.most_within(of_rows, 5) == ["a", "b", "c"]
    assert spans.most_within(of_rows, 1) == [], "fewer than three quarters"
    assert spans.most_within(of_rows, 5, share=0.8) == []


def test_of_many_curves_one_that_lies_off_is_left_out():
    """Its distance is a fifth of all, so that the enlarged panel had room for it."""
    names = ["fedavg", "fedprox", "fedadam", "fednova", "term"]
    points = many_points([*names, "adafed"])
    points.loc[points.method == "adafed", "value"] *= 0.85
    figure = plots.curves(points, quantity=ACCURACY)
    assert figure.axes[1].get_ylim()[0] > 85
    points = many_points([*names[:3], "adafed"])
    points.loc[points.method == "adafed", "value"] *= 0.85
    figure = plots.curves(points, quantity=ACCURACY)
    assert figure.axes[1].get_ylim()[0] < 80, "one of four is too many"


def rows_of(values, kind="mean", panel="accuracy (%)"):
    rows = [{"row": r, "kind": kind, "value": v, "panel": panel} for r, v in values.items()]
    return pd.DataFrame(rows).assign(spread=np.nan, status="")


def test_a_row_far_off_the_others_is_a_number_at_the_edge_of_a_summary():
    table = rows_of({"fedavg": 80.0, "fedadam": 81.0, "fedcada": 82.0, "fedams": 50.04})
    figure = plots.summary(table)
    (axes,) = figure.axes
    assert 75 < axes.get_xlim()[0] and [t.get_text() for t in axes.texts] == ["◂ 50"]
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "◂ ▸ beyond the axis" in words
    assert canvas.hidden(figure) == []


def test_published_values_of_other_data_squeeze_nothing():
    # Ours span a third of all, so that not every row of ours would be near the others.
    ours = rows_of({"fedavg": 80.0, "fedadam": 94.0})
    table = pd.concat([ours, rows_of({"fedavg": 57.0, "fedadam": 97.0}, "published")])
    figure = plots.summary(table, foreign=True)
    assert figure.axes[0].get_xlim()[0] > 65
    assert [t.get_text() for t in figure.axes[0].texts] == ["◂ ◇ 57", "◇ 97 ▸"]
    assert canvas.hidden(figure) == []
    # Of the same data they are what ours are to be compared with.
    whole = plots.summary(table)
    assert whole.axes[0].get_xlim()[0] < 57 and not whole.axes[0].texts


def test_words_at_the_edge_of_a_summary_lie_on_no_seed():
    """Two of five seeds have a value, and the words that name the other three are long."""
    mean = rows_of({"fedavg": 80.0, "adafed": np.nan})
    mean["status"] = np.where(mean.row == "adafed", "diverged (seed 2 4 5)", "")
    seeds = pd.concat([rows_of({"adafed": value}, "seed") for value in (33.0, 68.0)])
    panels = [pd.concat([mean, seeds]).assign(panel=name) for name in "abc"]
    figure = plots.summary(pd.concat(panels))
    assert [t.get_text().split() for t in figure.axes[0].texts] == ["diverged (seed 2 4 5)".split()]
    assert canvas.hidden(figure) == []


def test_a_panel_of_a_summary_may_have_a_logarithmic_axis():
    table = pd.concat([rows_of({"a": 0.5}), rows_of({"a": 0.1}, panel="loss")])
    first, second = plots.summary(table, log=["loss"]).axes
    assert first.get_xscale() == "linear" and second.get_xscale() == "log"


def test_equal_curves_are_both_seen():
    points = pd.concat([points_of([0.1, 0.2]), points_of([0.1, 0.2], "fedprox")])
    below, above = plots.curves(points, quantity=ACCURACY).axes[0].get_lines()
    assert below.get_linewidth() > above.get_linewidth() + 1
    assert below.get_color() != above.get_color() and below.get_marker() != above.get_marker()


def test_a_setting_has_its_ticks_at_its_values():
    points = pd.DataFrame({"setting": [1, 2, 5, 10, 20], "value": np.arange(5.0)})
    figure = plots.by_setting(points.assign(method="m", seed=1), setting="steps", ylabel="a")
    axes = figure.axes[0]
    assert [t.get_text() for t in axes.get_xticklabels()] == ["1", "2", "5", "10", "20"]
    assert axes.get_xscale() == "log"


def test_a_summary_shows_seeds_means_published_values_and_what_failed():
    rows = [
        {"row": "fedavg", "kind": "mean", "value": 80.0, "spread": 1.5},
        {"row": "fedavg", "kind": "seed", "value": 79.0},
        {"row": "fedavg", "kind": "published", "value": 82.0},
        {"row": "adafed", "kind": "mean", "value": np.nan, "status": "diverged (seed 1)"},
    ]
    table = pd.DataFrame(rows).assign(panel="accuracy (%)")
    axes = plots.summary(table).axes[0]
    assert [t.get_text() for t in axes.get_yticklabels()] == ["FedAvg", "AdaFed"]
    shown = {float(x) for line in axes.get_lines() for x in line.get_xdata()}
    assert {79.0, 80.0, 82.0} <= shown
    ((low, _), (high, _)) = axes.collections[0].get_segments()[0]
    assert (low, high) == (78.5, 81.5)
    assert [t.get_text() for t in axes.texts] == ["diverged (seed 1)"]


@pytest.mark.parametrize("kinds", [("mean",), ("published",), ("mean", "published"), ()])
def test_the_legend_of_a_summary_calls_only_our_bars_standard_deviations(kinds):
    rows = [
        {"row": "fedavg", "kind": k, "value": 80.0, "spread": 1.5 if k in kinds else np.nan}
        for k in ("mean", "published")
    ]
    figure = plots.summary(pd.DataFrame(rows).assign(panel="accuracy (%)", status=""))
    (legend,) = figure.legends
    told = [text.get_text() for text in legend.get_texts()]
    assert ("± one standard deviation over seeds" in told) == ("mean" in kinds)
    assert ("published, bars as printed" in told) == ("published" in kinds)


@pytest.mark.parametrize("width", [3.25, 6.75])
@pytest.mark.parametrize("names", [["fedavg", "qfedavg"], MANY[:8], MANY[:11]], ids=len)
def test_a_figure_for_a_column_has_its_width_and_text_of_8_points(names, width, tmp_path):
    points = many_points(names)
    figure = figures.fit(plots.curves(points, quantity=ACCURACY, title=LONG), width)
    assert figure.get_size_inches()[0] == width and canvas.hidden(figure) == []
    assert {t.get_fontsize() for t in figure.findobj(Text) if t.get_text()} == {8}
    assert all(LONG[:20] not in text for text in words_in(figure)), "the caption says it"
    first = [a.get_window_extent().x0 for a in figure.axes]
    last = [a.get_window_extent().x1 for a in figure.axes]
    assert (max(last) - min(first)) / figure.dpi >= 2 / 3 * width
    looks = [
        (line.get_color(), line.get_linestyle(), str(line._unscaled_dash_pattern))
        for axes in figure.axes
        for line in axes.get_lines()
        if line.get_label()[0] != "_"
    ]
    assert len(set(looks)) == len(looks) == len(names)
    paths = figures.save(figure, str(tmp_path / "x"), width=width)
    assert image.imread(paths[0]).shape[1] == pytest.approx(width * figure.dpi, abs=1)


def words_in(figure):
    return [text.get_text() for text in figure.findobj(Text)]


# Published marks of 37 rows lie on one another whatever the width; of summaries see below.
PLACED = [k for k in DRAWN if k != "curves" and not k.startswith("summary")]


def fitted(figure, width):
    """Returns a figure of a width, all of whose text can be seen; `None` if it is refused."""
    try:
        figure = figures.fit(figure, width)
    except figures.NoRoomError as e:
        assert "\n" not in str(e)
        return None
    hidden = [p for p in canvas.hidden(figure) if "smaller than an inch" not in p]
    assert hidden == [] and figure.get_size_inches()[0] == width
    assert figure.get_size_inches()[1] <= 9
    assert {t.get_fontsize() for t in figure.findobj(Text) if t.get_text()} == {8}
    return figure


@pytest.mark.quick_cases("3.25-pareto", "6.75-pareto", "3.25-tau")
@pytest.mark.parametrize("kind", PLACED)
@pytest.mark.parametrize("width", [3.25, 6.75])
def test_all_of_a_figure_for_a_column_can_be_seen_or_it_is_refused(kind, width):
    figure = fitted(DRAWN[kind](), width)
    # What they show is too much for a page, with names as long as these.
    too_much = ["similarities"] + ["client losses", "setting"] * (width == 3.25)
    assert figure is not None or kind in too_much


@pytest.mark.parametrize("width", [3.25, 6.75])
@pytest.mark.parametrize("methods", [1, 2, 5])
def test_a_large_heat_map_fits_a_column_without_its_numbers(methods, width):
    names = ("fedadagrad", "fedadam", "fedyogi", "fedavgm", "fedavg")[:methods]
    points = grid_points(names).drop(columns="tau")
    figure = fitted(plots.rate_heat_maps(points, label="accuracy (%)"), width)
    maps = [axes for axes in figure.axes if axes.images and axes.get_label() != "<colorbar>"]
    assert len(maps) == methods
    for axes in maps:
        numbers = [t.get_text() for t in axes.texts if t.get_text() != "×"]
        assert "×" in {t.get_text() for t in axes.texts}, "what diverged is always shown"
        # Nine numbers of three digits side by side take almost the width of a column.
        assert bool(numbers) == (methods == 1 or (methods == 2 and width == 6.75))
    assert len({axes.get_window_extent().width.round() for axes in maps}) == 1


def test_maps_of_a_few_cells_keep_their_numbers():
    points = grid_points(("fedavg",)).drop(columns="tau")
    few = points[points.client_learning_rate.isin(sorted(points.client_learning_rate)[::20][:3])]
    few = few[few.server_learning_rate >= 1]
    figure = fitted(plots.rate_heat_maps(few, label="accuracy (%)"), 3.25)
    assert any(t.get_text() not in ("×", "") for t in figure.axes[0].texts)


@pytest.mark.quick_cases("3.25-8", "6.75-8", "3.25-37")
@pytest.mark.parametrize("number", [1, 8, 20, 37])
@pytest.mark.parametrize("width", [3.25, 6.75])
def test_a_summary_fits_a_column_as_far_as_a_page_has_room(number, width):
    figure = fitted(plots.summary(summary_points(MANY[:number]), inches=width), width)
    most = 8 if width == 3.25 else 20
    assert (figure is not None) == (number <= most)
    if figure is not None:
        tops = {round(axes.get_window_extent().y1) for axes in figure.axes}
        assert (len(tops) == 1) == (width == 6.75), "one below the other in one column"


def test_a_figure_without_room_is_told_and_the_others_are_drawn(tmp_path, capsys, monkeypatch):
    def drawn(setup, folder, width):
        yield "large", plots.summary(summary_points(MANY), inches=width)
        yield "small", plots.summary(summary_points(MANY[:1]), inches=width)

    monkeypatch.setattr(drawing, "drawn", drawn)
    (path,) = drawing.draw_again(None, tmp_path, [".png"], 3.25)
    assert [path] == [str(p) for p in tmp_path.iterdir()] == [str(tmp_path / "small.png")]
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(
        r"warning: large is not drawn\. At a width of 3\.25 inches .* a page's 9;", line
    )


@pytest.mark.parametrize(("number", "panels"), [(8, 1), (9, 2), (37, 5)])
def test_a_panel_has_at_most_eight_curves(number, panels):
    figure = plots.curves(many_points(MANY[:number], 1, 5), quantity=ACCURACY, log=True)
    drawn = [len(axes.get_lines()) for axes in figure.axes]
    assert len(drawn) == panels and sum(drawn) == number and max(drawn) <= 8


def test_a_width_out_of_range_is_refused(tmp_path, capsys):
    assert plots.main(["curves", str(tmp_path), "--output=x", "--figure_width=0.5"]) == 2
    assert "--figure_width=0.5" in capsys.readouterr().err
