import numpy as np
import pytest

import tasks
from tasks.datasets import synthetic
from tff_suite.hparams import HparamError


def test_leaf_gives_what_leafs_program_gives():
    # Numbers of a run of LEAF's algorithm with `-num-tasks 100 -num-classes 10 -num-dim 60`.
    clients = synthetic.leaf_clients(100, 931231)
    sizes = np.array([len(c.y) for c in clients])
    np.testing.assert_array_equal(sizes[:10], [86, 33, 52, 6, 11, 784, 11, 153, 7, 672])
    assert sizes.sum() == 10_376 and sizes.min() == 5 and (sizes == 1000).sum() == 2
    np.testing.assert_allclose(clients[0].x[0, :3], [1.0749854, 0.9781692, -1.2358333], rtol=1e-6)
    labels = np.concatenate([c.y for c in clients])
    np.testing.assert_array_equal(
        np.bincount(labels), [1651, 294, 529, 886, 297, 484, 662, 5240, 303, 30]
    )


def test_leaf_of_another_seed_and_size():
    clients = synthetic.leaf_clients(40, 3)
    assert [len(c.y) for c in clients][:5] == [723, 53, 29, 5, 16]
    labels = np.concatenate([c.y for c in clients])
    np.testing.assert_array_equal(
        np.bincount(labels), [185, 55, 422, 1558, 23, 110, 28, 139, 44, 1370]
    )


def _assert_types(clients):
    for client in clients:
        assert client.x.shape == (len(client.y), 60)
        assert client.x.dtype == np.float32 and client.y.dtype == np.int32
        assert client.y.min() >= 0 and client.y.max() <= 9


def test_types_of_both_generators():
    _assert_types(synthetic.leaf_clients(20, 1))
    _assert_types(synthetic.alpha_beta_clients(20, 1, 500, 1.0, 1.0))


def test_leafs_inputs_have_its_variances():
    clients = synthetic.leaf_clients(300, 5)
    deviations = np.concatenate([c.x - c.x.mean(axis=0) for c in clients if len(c.y) >= 200])
    expected = np.arange(1, 61) ** -1.2
    np.testing.assert_allclose(deviations.var(axis=0), expected, rtol=0.08)


def test_alpha_beta_sizes_are_lognormal_plus_50():
    clients = synthetic.alpha_beta_clients(400, 2, None, 0.0, 0.0)
    sizes = np.array([len(c.y) for c in clients])
    assert sizes.min() >= 50
    logs = np.log(sizes - 50 + 0.5)
    np.testing.assert_allclose([np.median(logs), logs.std()], [4, 2], atol=0.35)
    assert max(len(c.y) for c in synthetic.alpha_beta_clients(400, 2, 90, 0.0, 0.0)) == 90


@pytest.mark.parametrize("beta", [0.0, 3.0])
def test_beta_spreads_the_clients_inputs(beta):
    clients = synthetic.alpha_beta_clients(400, 4, 60, 1.0, beta)
    centres = [c.x.mean() for c in clients]
    # A client's mean over 60 inputs of v_k around B_k has variance 1/60, examples add little.
    np.testing.assert_allclose(np.std(centres), (beta**2 + 1 / 60) ** 0.5, rtol=0.12)


def test_alpha_changes_no_label():
    near = synthetic.alpha_beta_clients(30, 6, 200, 0.0, 1.0)
    far = synthetic.alpha_beta_clients(30, 6, 200, 2.0, 1.0)
    for a, b in zip(near, far, strict=True):
        np.testing.assert_array_equal(a.x, b.x)
        np.testing.assert_array_equal(a.y, b.y)


def test_clients_models_differ():
    clients = synthetic.alpha_beta_clients(30, 6, 200, 1.0, 0.0)
    commonest = {np.bincount(c.y, minlength=10).argmax() for c in clients}
    assert len(commonest) >= 5


def test_defaults_are_the_adafedadam_papers():
    task = tasks.load("synthetic", seed=1)
    assert len(task.train.client_ids) == 100
    assert task.settings["generator"] == "leaf" and task.settings["max_examples"] == 1000
    sizes = task.train.sizes + task.test.sizes
    assert sizes.sum() == 10_376
    np.testing.assert_array_equal(task.train.sizes, np.floor(0.8 * sizes + 1e-9))
    np.testing.assert_array_equal(
        task.central_test.x,
        np.concatenate([task.test.examples(k).x for k in range(100)]),
    )


def test_the_split_follows_the_seed_and_the_data_do_not():
    def everything(task):
        parts = [np.concatenate([d.examples(0).x for d in (task.train, task.test)])]
        return np.sort(np.concatenate(parts), axis=0)

    first, again = tasks.load("synthetic", seed=1), tasks.load("synthetic", seed=1)
    other = tasks.load("synthetic", seed=2)
    fixed = tasks.load("synthetic", seed=2, partition_seed=1)
    np.testing.assert_array_equal(first.test.examples(0).x, again.test.examples(0).x)
    np.testing.assert_array_equal(first.test.examples(0).x, fixed.test.examples(0).x)
    assert not np.array_equal(first.test.examples(0).x, other.test.examples(0).x)
    np.testing.assert_array_equal(everything(first), everything(other))
    data = tasks.load("synthetic", seed=1, data_seed=5)
    assert not np.array_equal(first.train.sizes, data.train.sizes)


@pytest.mark.parametrize("setting", ["alpha", "beta"])
def test_a_setting_of_the_other_generator_is_refused(setting):
    with pytest.raises(HparamError, match=f"{setting}.*generator=alpha_beta"):
        tasks.load("synthetic", **{setting: 1.0})


def test_alpha_beta_task():
    task = tasks.load("synthetic", generator="alpha_beta", beta=0.5, max_examples=100)
    assert task.settings["alpha"] == 1.0 and task.settings["beta"] == 0.5
    assert (task.train.sizes + task.test.sizes).max() == 100
