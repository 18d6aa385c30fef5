"""LEAF's folders as LEAF's scripts leave them (`tests/tasks/published`): what is read of them."""

import collections
import contextlib
import csv
import json
import os
import re
import shutil

import numpy as np
import pytest

import tasks
from tasks.task import DataError
from tests.simulation.one_round import one_round
from tests.tasks import published_files
from tff_suite.hparams import HparamError

_TASKS = {"femnist": "femnist", "sent140": "sent140", "shakespeare": "shakespeare_character"}
_SETTINGS = {
    "femnist": {},
    "sent140": {"embedding": "trained", "vocab_size": 5},
    "shakespeare": {"roles": "leaf", "examples": "windows"},
}
_ALL = [(name, options) for name, every in published_files.LEAF.items() for options in every]
_STEPS = ("rem_user_data", "sampled_data", "all_data")
# The characters of LEAF's model, in its order; any other has place -1 there.
_LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"


def _load(name, folder, **settings):
    settings = {**_SETTINGS[name], **settings}
    if name == "shakespeare":
        settings.setdefault("source", "leaf")
    return tasks.load(_TASKS[name], data_dir=str(folder), **settings)


def _expected(folder, step):
    """Returns user -> (x, y) of a step, by a reader of its own; users without examples are none."""
    users = {}
    for path in sorted((folder / step).glob("[!.]*.json")):
        content = json.loads(path.read_text())
        for user in content["users"]:
            own = content["user_data"][user]
            if own["y"]:
                users[user] = own["x"], own["y"]
    return users


def _rows(name, xs, ys, words=()):
    """Returns the examples as the task should have them, each as one tuple of numbers."""
    rows = []
    for x, y in zip(xs, ys, strict=True):
        if name == "femnist":
            rows.append((*np.rint(np.multiply(x, 255)).astype(int), y))
        elif name == "shakespeare":
            rows.append(tuple(_LETTERS.find(c) % len(_LETTERS) for c in x + y))
        else:
            tokens = [_place(words, word) + 1 for word in _words(x)[:25]] or [len(words) + 1]
            rows.append((*tokens, *[0] * (25 - len(tokens)), y))
    return rows


def _words(tweet):
    """Returns a tweet's words as LEAF splits them, of its text, the fifth of six entries."""
    *_, text, publishers_file = tweet
    assert len(tweet) == 6 and publishers_file in ("training", "test")
    return re.findall(r"[\w']+|[.,!?;]", text.lower())


def _place(words, word):
    return words.index(word) if word in words else len(words)


def _vocabulary(users):
    """Returns the words of some users' tweets by the number of users, then by the alphabet."""
    counts = collections.Counter()
    for tweets, _ in users.values():
        counts.update({word for tweet in tweets for word in _words(tweet)})
    return sorted(counts, key=lambda word: (-counts[word], word))


def _loaded_rows(name, x, y):
    scale = 255 if name == "femnist" else 1
    x = np.rint(x.reshape(len(x), int(np.prod(x.shape[1:]))) * scale).astype(int)
    return [(*map(int, row), int(label)) for row, label in zip(x, y, strict=True)]


def _check(name, data, expected, words=()):
    assert set(data.client_ids) >= set(expected)
    for k, user in enumerate(data.client_ids):
        rows = _loaded_rows(name, *data.examples(k))
        wanted = _rows(name, *expected.get(user, ([], [])), words)
        if name == "sent140" and not words:
            # The words' places are compared where the vocabulary is known.
            rows, wanted = ([(row.count(0), row[-1]) for row in some] for some in (rows, wanted))
        assert sorted(rows) == sorted(wanted)
        assert data.sizes[k] == len(rows)


def _known(name, users):
    """Returns the words that have a place, and the setting that gives one to all words."""
    words = _vocabulary(users) if name == "sent140" else ()
    return words, {"vocab_size": len(words)} if words else {}


def _number(count, what):
    return f"{count} {what}{'' if count == 1 else 's'}"


def _said(part, users):
    examples = sum(len(y) for _, y in users.values())
    said = f"{_number(len(users), 'user')} with {_number(examples, 'example')}"
    return said if part == "all" else f"{said} in {part}"


@pytest.mark.parametrize(("name", "options"), _ALL)
def test_every_example_is_loaded_from_the_latest_step(tmp_path, capfd, name, options):
    published_files.write_leaf(tmp_path, name, options)
    split = (tmp_path / "train").exists()
    step = next(step for step in _STEPS if (tmp_path / step).exists())
    if split:
        expected = {part: _expected(tmp_path, part) for part in ("train", "test")}
        words, settings = _known(name, expected["train"])
        task = _load(name, tmp_path, split="source", **settings)
        _check(name, task.train, expected["train"], words)
        _check(name, task.test, expected["test"], words)
        assert sorted(task.train.client_ids) == sorted(expected["train"])
        if "user" in options:
            assert set(task.test.client_ids) == set(expected["test"])
            assert not set(task.test.client_ids) & set(task.train.client_ids)
        else:
            assert list(task.test.client_ids) == list(task.train.client_ids)
        assert len(task.central_test.x) == sum(len(y) for _, y in expected["test"].values())
        step = "train and test"
    else:
        expected = {"all": _expected(tmp_path, step)}
        words, settings = _known(name, expected["all"])
        task = _load(name, tmp_path, test_fraction=0.0, **settings)
        _check(name, task.train, expected["all"], words)
        with pytest.raises(HparamError, match="split=local"):
            _load(name, tmp_path, split="source")
    assert task.settings["leaf_path"] == str(tmp_path / step.split(" ")[0])
    lines = [line for line in capfd.readouterr().err.splitlines() if ": read LEAF's" in line]
    for part in (f"LEAF's {step} in {tmp_path}", *(_said(*each) for each in expected.items())):
        assert part in lines[0], lines[0]


@pytest.mark.parametrize(("name", "options"), _ALL)
def test_a_split_of_ones_own_has_every_example_once(tmp_path, name, options):
    published_files.write_leaf(tmp_path, name, options)
    parts = ("train", "test") if (tmp_path / "train").exists() else None
    parts = parts or [next(step for step in _STEPS if (tmp_path / step).exists())]
    expected = {}
    for part in parts:
        for user, (x, y) in _expected(tmp_path, part).items():
            known = expected.get(user, ([], []))
            expected[user] = [*known[0], *x], [*known[1], *y]
    task = _load(name, tmp_path, test_fraction=0.3)
    for k, user in enumerate(task.train.client_ids):
        rows = _loaded_rows(name, *task.train.examples(k))
        if task.test is not None:
            tests = _loaded_rows(name, *task.test.examples(k))
            rows += tests
        wanted = _rows(name, *expected.pop(user))
        if name == "sent140":
            rows, wanted = ([(row.count(0), row[-1]) for row in some] for some in (rows, wanted))
        if name != "shakespeare":
            assert sorted(rows) == sorted(wanted)
            continue
        # The last windows are the tests, and those between, which reach into both, are left out.
        num_train = int(0.7 * len(wanted) + 1e-9)
        assert rows == wanted[:num_train] + wanted[num_train + 79 :]
    assert not expected


@pytest.mark.parametrize("name", ["femnist", "sent140"])
def test_the_latest_step_is_read_and_the_others_named(tmp_path, capfd, name):
    options = {"femnist": "niid_k0_sample", "sent140": "niid_k3_sample"}[name]
    published_files.write_leaf(tmp_path, name, options)
    assert (tmp_path / "train").exists()
    for i, step in enumerate(("train", *_STEPS)):
        if step != "train":
            for gone in ("train", "test") if i == 1 else [_STEPS[i - 2]]:
                shutil.rmtree(tmp_path / gone)
            _check(name, _load(name, tmp_path, test_fraction=0.0).train, _expected(tmp_path, step))
        else:
            _load(name, tmp_path)
        lines = [line for line in capfd.readouterr().err.splitlines() if ": read LEAF's" in line]
        others = [other for other in _STEPS if (tmp_path / other).exists() and other != step]
        assert f"LEAF's {step}" in lines[0]
        assert (f"(not {', '.join(others)})" in lines[0]) == bool(others)


@pytest.mark.parametrize("name", _TASKS)
@pytest.mark.parametrize("part", ["train", "test"])
def test_one_part_of_a_split_is_not_taken_for_all(tmp_path, name, part):
    published_files.write_leaf(tmp_path, name, "sample_2018")
    shutil.rmtree(tmp_path / part)
    with pytest.raises(DataError, match=f"none in {part}"):
        _load(name, tmp_path)


@pytest.mark.parametrize("name", _TASKS)
def test_other_files_in_the_folders_are_ignored(tmp_path, name):
    published_files.write_leaf(tmp_path, name, "sample_2018")
    for part in ("train", "test", "all_data", "."):
        for other in (".DS_Store", "README", "all_data.json.bak", ".hidden.json"):
            (tmp_path / part / other).write_bytes(b"\0\1")
        # What macOS writes on other systems' disks.
        (tmp_path / part / "._all_data.json").write_bytes(b"\0\5\x16\7")
        (tmp_path / part / "meta").mkdir()
    task = _load(name, tmp_path, split="source")
    _check(name, task.train, _expected(tmp_path, "train"))


@pytest.mark.parametrize("name", _TASKS)
def test_users_may_be_in_several_files(tmp_path, name):
    published_files.write_leaf(tmp_path, name, "all")
    (path,) = (tmp_path / "all_data").glob("*.json")
    content = json.loads(path.read_text())
    for i in range(len(content["users"])):
        one = {key: content[key][i : i + 1] for key in ("users", "num_samples")}
        one["user_data"] = {user: content["user_data"][user] for user in one["users"]}
        path.with_name(f"part_{i}.json").write_text(json.dumps(one))
    path.unlink()
    expected = _expected(tmp_path, "all_data")
    assert len(expected) == len(content["users"])
    _check(name, _load(name, tmp_path, test_fraction=0.0).train, expected)


@contextlib.contextmanager
def _changed(folder, part):
    (path,) = (folder / part).glob("*.json")
    content = json.loads(path.read_text())
    yield content
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("name", _TASKS)
def test_users_without_examples_are_left_out(tmp_path, capfd, name):
    published_files.write_leaf(tmp_path, name, "sample_2018")
    for part in ("train", "test"):
        with _changed(tmp_path, part) as content:
            content["users"].append("nobody")
            content["num_samples"].append(0)
            content["user_data"]["nobody"] = {"x": [], "y": []}
    # One user has training examples only.
    with _changed(tmp_path, "test") as content:
        first = content["users"][0]
        content["num_samples"][0] = 0
        content["user_data"][first] = {"x": [], "y": []}
    task = _load(name, tmp_path, split="source")
    _check(name, task.train, _expected(tmp_path, "train"))
    _check(name, task.test, _expected(tmp_path, "test"))
    assert "nobody" not in task.train.client_ids
    assert list(task.test.client_ids) == list(task.train.client_ids)
    assert "1 more user without examples" in capfd.readouterr().err


@pytest.mark.parametrize("by", [1, -1, 79])
@pytest.mark.parametrize("part", ["train", "test"])
@pytest.mark.parametrize("name", _TASKS)
def test_numbers_that_disagree_with_the_examples_are_refused(tmp_path, name, part, by):
    published_files.write_leaf(tmp_path, name, "sample_2018")
    with _changed(tmp_path, part) as content:
        content["num_samples"][0] += by
    # LEAF's own later split announces 79 tests of a role that it leaves out.
    is_leafs = (name, part, by) == ("shakespeare", "test", 79)
    error = contextlib.nullcontext() if is_leafs else pytest.raises(DataError, match="announced as")
    with error:
        _load(name, tmp_path)


@pytest.mark.parametrize("name", _TASKS)
@pytest.mark.parametrize("change", ["unlisted", "labels", "twice"])
def test_users_and_data_that_do_not_fit_are_refused(tmp_path, name, change):
    published_files.write_leaf(tmp_path, name, "all")
    with _changed(tmp_path, "all_data") as content:
        user = content["users"][0]
        if change == "unlisted":
            content["users"].pop(0)
            content["num_samples"].pop(0)
        elif change == "labels":
            content["user_data"][user]["y"].pop()
        else:
            content["users"].append(user)
            content["num_samples"].append(content["num_samples"][0])
    said = {"unlisted": "not listed", "labels": "labels of user", "twice": "already read"}[change]
    with pytest.raises(DataError, match=said):
        _load(name, tmp_path)


def test_a_user_whose_examples_are_in_a_file_twice_is_refused(tmp_path):
    published_files.write_leaf(tmp_path, "femnist", "all")
    with _changed(tmp_path, "all_data") as content:
        user = content["users"][0]
    (path,) = tmp_path.rglob("*.json")
    # What comes first would be lost: json keeps the last of two equal keys.
    start = f'"user_data": {{{json.dumps(user)}: '
    text = path.read_text()
    assert start in text
    again = start + '{"x": [[0.0]], "y": [0]}, ' + start.removeprefix('"user_data": {')
    path.write_text(text.replace(start, again))
    with pytest.raises(DataError, match=f"an object with the key '{user}' twice"):
        _load("femnist", tmp_path)


def _prepare(name, folder):
    return tasks.get(name).prepare_fn()(str(folder), str(folder))


@pytest.mark.parametrize("name", ["femnist", "sent140"])
def test_a_prepared_set_says_what_it_was_made_of(tmp_path, capfd, name):
    published_files.write_leaf(tmp_path, name, "sample_2018")
    raw = _load(name, tmp_path, split="source")
    _prepare(name, tmp_path)
    capfd.readouterr()
    made = _load(name, tmp_path, split="source")
    said = capfd.readouterr().err
    assert f"read {tmp_path / name}.prepared" in said and "in train; " in said
    assert "warning" not in said
    for a, b in zip((raw.train, raw.test), (made.train, made.test), strict=True):
        assert list(a.client_ids) == list(b.client_ids)
        for k in range(len(a.client_ids)):
            np.testing.assert_array_equal(a.examples(k).x, b.examples(k).x)


@pytest.mark.parametrize("name", ["femnist", "sent140"])
@pytest.mark.parametrize("change", ["other size", "another file", "another step", "newer"])
def test_a_prepared_set_beside_other_files_is_not_read_in_silence(tmp_path, capfd, name, change):
    published_files.write_leaf(tmp_path, name, "sample_2018", ("all_data",))
    _prepare(name, tmp_path)
    (path,) = (tmp_path / "all_data").glob("*.json")
    if change == "other size":
        path.write_text(path.read_text() + "\n")
    elif change == "another file":
        path.rename(path.with_name("all_data_7.json"))
    elif change == "another step":
        published_files.write_leaf(tmp_path, name, "sample_2018", ("train", "test"))
    else:
        later = (tmp_path / f"{name}.prepared" / "manifest.json").stat().st_mtime + 5
        os.utime(path, (later, later))
    capfd.readouterr()
    if change == "newer":
        _load(name, tmp_path)
        said = capfd.readouterr().err
        assert f"the prepared data in {tmp_path / name}.prepared, although {path} is newer" in said
        return
    with pytest.raises(DataError, match=r"made from different files.*remove it and run"):
        _load(name, tmp_path)


def test_a_run_tests_the_clients_that_do_not_train(tmp_path):
    published_files.write_leaf(tmp_path / "data", "femnist", "k1_user")
    result = one_round(
        "femnist",
        tmp_path / "runs",
        femnist_split="source",
        data_dir=tmp_path / "data",
        runtime="vectorized",
    )
    with open(os.path.join(result.folder, "client_metrics.csv"), newline="") as file:
        tested = {row["client_id"]: int(row["test_examples"]) for row in csv.DictReader(file)}
    users = _expected(tmp_path / "data", "test")
    assert tested == {user: len(y) for user, (_, y) in users.items()}


def test_leafs_windows_have_one_form():
    spec = tasks.get("shakespeare_character")
    settings = spec.resolve({"source": "leaf"})
    assert {**settings, **_SETTINGS["shakespeare"]} == settings
    for given, said in (
        ({"source": "leaf", "roles": "tff"}, "use source=text"),
        ({"source": "leaf", "examples": "sequences"}, "use source=text"),
        ({"source": "leaf", "split": "source", "test_fraction": 0.3}, "test_fraction is not used"),
        ({"source": "text", "split": "source"}, "split is not used"),
    ):
        with pytest.raises(HparamError, match=said):
            spec.resolve(given)


def test_roles_with_tests_alone_are_left_out_of_the_play_text():
    settings = {**_SETTINGS["shakespeare"], "test_fraction": 0.95}
    task = tasks.load("shakespeare_character", use_synthetic_data=True, **settings)
    assert 0 < len(task.train.client_ids) < 10
    assert task.test.client_ids is task.train.client_ids


def test_leafs_windows_are_read_without_the_play_text(tmp_path):
    published_files.write_leaf(tmp_path / "shakespeare" / "data", "shakespeare", "k0_sample")
    task = _load("shakespeare", tmp_path, source="auto")
    assert task.settings["source"] == "leaf" and task.settings["split"] == "local"
    assert task.keras_model_fn(0).output_shape == (None, 80)
