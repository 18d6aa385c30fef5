import itertools

import numpy as np
import pytest

import tff_algos
from reproduction.looks import MOST_LINES, displayed, grouped, looks_of
from tff_suite import palette

NAMES = tff_algos.names()


def test_every_two_methods_differ_in_colour_and_in_mark():
    for pair in itertools.combinations(NAMES, 2):
        one, other = looks_of(pair).values()
        assert one.colour != other.colour and one.mark != other.mark, pair


@pytest.mark.parametrize("seed", range(20))
def test_whichever_methods_a_figure_has_no_two_look_the_same(seed):
    """Up to eight differ in colour and in mark; all of them in colour or in line style."""
    generator = np.random.default_rng(seed)
    for number in range(2, len(NAMES) + 1):
        looks = list(looks_of(generator.permutation(NAMES)[:number].tolist()).values())
        assert len({(look.colour, look.dashes) for look in looks}) == number
        if number <= MOST_LINES:
            assert len({look.colour for look in looks}) == number
            assert len({look.mark for look in looks}) == number


def test_a_method_has_the_colour_that_it_declares_where_no_other_has_it():
    specs = [tff_algos.get(name) for name in NAMES]
    declared = [spec for spec in specs if spec.look]
    assert declared
    for spec in declared:
        assert looks_of([spec.name, "another"])[spec.name].colour == palette.COLOURS[spec.look[0]]


@pytest.mark.parametrize(
    "names",
    [
        ["fedavg", "fedavgm", "fedadagrad", "fedadam", "fedyogi"],
        ["fedavg", "qfedavg", "term", "fedmgda_plus", "afl", "ditto", "fedfa", "adafed"],
        ["fedavg", "fedadam", "qfedavg", "qfedavg_reweight", "fednova", "fedprox", "adafedadam"],
        ["fedavg", "fedadam", "fedams", "fedsps", "fafed", "fedcada"],
        ["fedda_sgdm", "fedda_adam", "fedda_adagrad", "fedavg", "fedavgm", "fedadam", "fedadagrad"],
        ["fedavg", "my_method", "another_one", "fedadam"],
        [f"adafed gamma={g}" for g in range(8)],
    ],
)
def test_what_a_paper_shows_together_differs_in_colour(names):
    assert len({look.colour for look in looks_of(names).values()}) == len(names)


def test_settings_of_several_methods_share_the_methods_colour_and_differ_in_style():
    names = [f"{m} l={i}" for m in ("fedda_adam", "fedda_sgdm") for i in range(5)]
    looks = looks_of(names)
    assert len({look.colour for look in looks.values()}) == 2
    assert len(set(looks.values())) == 10


def test_settings_of_a_method_take_no_place_of_another_method():
    names = [*(f"fedavg l={i}" for i in range(6)), "fedlocal", "centralized"]
    looks = looks_of(names)
    assert len({(look.colour, look.dashes) for look in looks.values()}) == len(names)
    others = {looks["fedlocal"].colour, looks["centralized"].colour}
    assert len({looks["fedavg l=0"].colour, *others}) == 3


def test_what_one_scheme_runs_with_several_optimizers_shares_a_colour():
    optimizers = ("sgdm", "adam", "adagrad")
    schemes = ("fedlocal", "mfl", "mimelite", "fedopt")
    looks = looks_of(f"{scheme}_{name}" for scheme in schemes for name in optimizers)
    colours = [{looks[f"{scheme}_{name}"].colour for name in optimizers} for scheme in schemes]
    assert all(len(own) == 1 for own in colours) and len(set.union(*colours)) == len(schemes)


@pytest.mark.parametrize(
    ("names", "sizes"),
    [
        (["fedavg"], [1]),
        ([f"m{i}" for i in range(8)], [8]),
        ([f"m{i}" for i in range(9)], [5, 4]),
        ([f"{m} l={i}" for m in ("fedavg", "fedadam") for i in range(5)], [5, 5]),
        ([f"{s}_{o}" for s in ("mfl", "mimelite", "fedda") for o in "abcd"], [4, 4, 4]),
        ([f"fedavg l={i}" for i in range(20)], [7, 7, 6]),
    ],
)
def test_more_than_eight_rows_are_shared_out_over_panels(names, sizes):
    panels = grouped(names)
    assert [len(rows) for rows in panels] == sizes
    assert [row for rows in panels for row in rows] == names


def test_methods_are_named_as_in_their_papers():
    rows = ["fedavg pixels=raw", "qfedavg q=1 pixels=raw", "mine pixels=raw"]
    assert list(displayed(rows).values()) == ["FedAvg", "q-FedAvg q=1", "mine"]
    assert displayed(["qfedavg_reweight"]) == {"qfedavg_reweight": "q-FedAvg reweight"}
    assert displayed(["adafed gamma=1"]) == {"adafed gamma=1": "AdaFed gamma=1"}


@pytest.mark.parametrize(
    "rows",
    [
        ["fedavg 4 epochs 2 clients", "fedavg 2 epochs 4 clients"],
        ["fedprox 5 epochs 5 clients", "fedprox 5 epochs 10 clients"],
        ["fedavg", "FedAvg"],
        ["fedavg_2", "fedavg 2"],
        ["fedavg a=1 b=1", "fedavg b=1 a=1"],
    ],
)
def test_no_two_rows_have_one_name(rows):
    """Words that are no settings say by their place and number what a row is."""
    assert len(set(displayed(rows).values())) == 2
