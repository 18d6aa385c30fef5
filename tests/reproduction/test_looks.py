import pytest

import tff_algos
from reproduction.looks import looks_of


def test_every_method_has_a_look_of_its_own_and_the_same_in_every_figure():
    names = tff_algos.names()
    together = looks_of(names)
    assert len({(look.colour, look.dashes) for look in together.values()}) == len(names)
    for name in ("fedavg", "scaffold", "adafed"):
        assert looks_of([name, "fedprox"])[name] == together[name]


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
    assert looks["fedlocal"] == looks_of(["fedlocal"])["fedlocal"]


def test_what_one_scheme_runs_with_several_optimizers_shares_a_colour():
    optimizers = ("sgdm", "adam", "adagrad")
    schemes = ("fedlocal", "mfl", "mimelite", "fedopt")
    looks = looks_of(f"{scheme}_{name}" for scheme in schemes for name in optimizers)
    colours = [{looks[f"{scheme}_{name}"].colour for name in optimizers} for scheme in schemes]
    assert all(len(own) == 1 for own in colours) and len(set.union(*colours)) == len(schemes)
