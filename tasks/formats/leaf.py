"""Reads LEAF's JSON files of users' examples (Caldas et al. 2018), file by file.

LEAF's scripts leave a folder `data` with one folder per step: `all_data/`, then `sampled_data/`
(`-s`), `rem_user_data/` (`-k`), and `train/` and `test/` (`-t`). Each step reads the output of the
step before it, so the latest folder is what the user requested. A file has `users`, `num_samples`
and `user_data` (user -> `x`, `y`). In each folder a user is in only one file, with all of its
examples. Other entries, such as `hierarchies` and `raw`, are not used.

LEAF's own files differ from that in two ways. Its early splits by sample leave users without
examples in `user_data` that `users` does not list. Its later split of Shakespeare omits 79 windows
that reach from the tests into the training text, but still includes them in the announced number of
tests.
"""

import functools
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tasks.formats import files as files_lib
from tasks.formats import prepared
from tasks.task import DataError

# (x, y) as in the file -> rows of each array; raises `ValueError` on what it refuses.
Convert = Callable[[Sequence[Any], Sequence[Any]], Mapping[str, Any]]

_PARTS = ("train", "test")
# Folders of the steps before the split, the latest first.
_UNSPLIT = ("rem_user_data", "sampled_data", "all_data")
_STEPS = (*_PARTS, *_UNSPLIT)
# Files with these endings may hold users. Only `.json` is read.
_ENDINGS = re.compile(r"\.json(\.(gz|bz2|xz|zip))?$", re.IGNORECASE)


class Found(NamedTuple):
    """LEAF's files of its latest step.

    Attributes:
      folder: The folder that LEAF calls `data`.
      parts: Folder name (`train` and `test`, or another) → paths of its files.
      unread: Existing folders of earlier steps.
    """

    folder: str
    parts: Mapping[str, Sequence[str]]
    unread: Sequence[str]

    @property
    def paths(self) -> list[str]:
        """Paths of all files."""
        return [path for paths in self.parts.values() for path in paths]


def find(data_dir: str, task: str, advice: str) -> Found | None:
    """Returns the files of the latest step that LEAF's scripts ran, or `None` without any.

    Args:
      data_dir: The folder that LEAF calls `data`, or one above it: LEAF's folder of the data set,
        or that of all data sets.
      task: Name of the data set.
      advice: Where to get the files and how to point at them, for error messages.

    Raises:
      DataError: If a folder may not be read, only one of `train` and `test` has files, or a file of
        the latest step has a name that would leave it out.
    """
    for folder in _folders(data_dir, task):
        names = {step: _names(os.path.join(folder, step), advice) for step in _STEPS}
        found = {
            step: [os.path.join(folder, step, name) for name in sorted(shown) if _is_read(name)]
            for step, shown in names.items()
        }
        unsplit = [step for step in _UNSPLIT if found[step]]
        parts = [step for step in _PARTS if found[step]]
        # No file of a step before the latest one is read, whatever its name.
        chosen = _PARTS if parts else unsplit[:1]
        for step in _STEPS[: _STEPS.index(chosen[-1]) + 1] if chosen else _STEPS:
            _refuse_unread(os.path.join(folder, step), names[step], advice)
        if len(parts) == 1:
            other = "test" if parts == ["train"] else "train"
            raise DataError(
                f"{folder} has JSON files in {parts[0]} and none in {other}, both of which LEAF's "
                f"split makes; run it again, or {advice}"
            )
        if parts:
            return Found(folder, {step: found[step] for step in parts}, unsplit)
        if unsplit:
            return Found(folder, {unsplit[0]: found[unsplit[0]]}, unsplit[1:])
    return None


def missing(data_dir: str, task: str, what: str, advice: str) -> DataError:
    """Returns the error for missing LEAF files, see `files.missing`.

    Args:
      data_dir: Where they should be.
      task: Name of the data set.
      what: Other possible sources that are also missing, as text, or empty.
      advice: Where to get the files and how to point at them.
    """
    paths = [os.path.join(f, step) for f in _folders(data_dir, task) for step in _STEPS]
    there = files_lib.but_there_is([*paths, os.path.join(data_dir, task)])
    return DataError(
        f"{data_dir} has no LEAF files (all_data, or train and test){what}{there}; {advice}"
    )


def _folders(data_dir: str, task: str) -> list[str]:
    return [os.path.normpath(os.path.join(data_dir, parent)) for parent in _parents(task)]


def _parents(task: str) -> tuple[str, ...]:
    return ("", "data", task, os.path.join(task, "data"))


def patterns(task: str) -> list[str]:
    """Returns patterns of the files below `data_dir`, and of the prepared set made of them.

    Args:
      task: Name of the data set.
    """
    files = [os.path.join(p, step, "*.json") for p in _parents(task) for step in _STEPS]
    return [f"{task}.prepared", *files]


def source(
    found: Found,
    arrays: Mapping[str, prepared.Array],
    convert: Convert,
    advice: str,
    left_out: int = 0,
) -> prepared.Source:
    """Returns LEAF's files as the source of a set, one piece per file.

    Args:
      found: The result of `find`.
      arrays: The arrays that `convert` makes.
      convert: Converts a user's examples to rows.
      advice: Where to get the files and how to point at them, for error messages.
      left_out: A user of `test` may have up to this many examples fewer than announced.
    """
    pieces = []
    for step, paths in found.parts.items():
        part = step if step in _PARTS else "all"
        # As sets are called that were made when this was the only step read.
        called = "all" if step == "all_data" else step
        for path in paths:
            few = left_out if part == "test" else 0
            read = functools.partial(_read, path, part, convert, advice, few)
            name = os.path.join(called, os.path.basename(path))
            with files_lib.reading(path, advice):
                pieces.append(prepared.Piece(name, os.path.getsize(path), read))
    return prepared.Source(arrays, pieces)


def read(
    task: str,
    data_dir: str,
    arrays: Mapping[str, prepared.Array],
    convert: Convert,
    advice: str,
    num_classes: int | None = None,
    left_out: int = 0,
) -> tuple[prepared.Prepared, str] | None:
    """Reads the prepared set in a folder, else LEAF's files, and prints which it was.

    Args:
      task: Name of the data set.
      data_dir: See `find`.
      arrays: See `source`.
      convert: See `source`.
      advice: See `source`.
      num_classes: See `prepared.read`.
      left_out: See `source`.

    Returns:
      The examples, and the set's folder or the first one of the files; `None` if there is neither.

    Raises:
      DataError: If a file is damaged, or the set was made from different files than those beside
        it.
    """
    folder = prepared.find(data_dir, task, advice)
    found = find(data_dir, task, advice)
    if folder is not None:
        again = f"remove it and run python -m tasks.prepare again, or {advice}"
        made = prepared.read(folder, again, arrays, num_classes=num_classes)
        if found is not None:
            now = source(found, arrays, convert, advice, left_out).made_of
            if prepared.made_of(folder, again) != now:
                raise DataError(
                    f"{folder} was made from different files than {_steps(found)} in "
                    f"{found.folder}; to use the current files, {again}"
                )
            prepared.warn_if_older(folder, found.paths)
        _say(task, f"{folder}, a set made of LEAF's files", made)
        return made, folder
    if found is None:
        return None
    made = prepared.in_memory(source(found, arrays, convert, advice, left_out))
    unread = f" (not {', '.join(found.unread)})" if found.unread else ""
    _say(task, f"LEAF's {_steps(found)} in {found.folder}{unread}", made)
    return made, os.path.dirname(found.paths[0])


def _steps(found: Found) -> str:
    return " and ".join(found.parts)


def _say(task: str, what: str, made: prepared.Prepared) -> None:
    """Prints what is read, and its number of users and examples."""
    counts = []
    for part, clients in made.parts.items():
        sizes = [len(rows) for rows in clients.values()]
        users, examples = sum(n > 0 for n in sizes), sum(sizes)
        which = "" if part == "all" else f" in {part}"
        without = len(sizes) - users
        empty = f", {_number(without, 'more user')} without examples" if without else ""
        counts.append(f"{_number(users, 'user')} with {_number(examples, 'example')}{which}{empty}")
    print(f"{task}: read {what}: {'; '.join(counts) or 'no users'}", file=sys.stderr)


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def tested(drawn: Sequence[str], train: Collection[str], test: Sequence[str]) -> list[str]:
    """Returns the clients to test if the files are already split into train and test.

    Args:
      drawn: The clients chosen to train.
      train: All clients with training examples.
      test: All clients with tests.

    Returns:
      The chosen clients, possibly some without tests. But if some clients have only tests (LEAF's
      `-t user`): these, and those chosen clients that have tests, in the order of `test`.
    """
    chosen, train = set(drawn), set(train)
    if train.issuperset(test):
        return list(drawn)
    return [client for client in test if client in chosen or client not in train]


def prepare(
    task: str,
    source_dir: str,
    data_dir: str,
    arrays: Mapping[str, prepared.Array],
    convert: Convert,
    advice: str,
    published: Mapping[str, int],
) -> prepared.Outcome:
    """Makes a prepared set from LEAF's files, for `tasks.prepare`.

    Args:
      task: Name of the data set.
      source_dir: Where LEAF's files are, see `find`.
      data_dir: Where to put the set.
      arrays: See `source`.
      convert: See `source`.
      advice: See `source`.
      published: See `prepared.write`.

    Raises:
      DataError: If a file is missing or damaged.
    """
    found = find(source_dir, task, advice)
    if found is None:
        raise missing(source_dir, task, "", advice)
    print(f"{task}: reading LEAF's {_steps(found)} in {found.folder}", file=sys.stderr)
    return prepared.write(source(found, arrays, convert, advice), data_dir, task, published)


def _names(folder: str, advice: str) -> list[str]:
    """Returns the names of a step's files, none if there is no such folder."""
    if not (files_lib.exists(folder, advice) and os.path.isdir(folder)):
        return []
    with files_lib.decoding(folder, advice):
        # What macOS puts beside a file on other systems' disks is called `._` and the file's name.
        return [name for name in os.listdir(folder) if not name.startswith(".")]


def _is_read(name: str) -> bool:
    return name.endswith(".json")


def _refuse_unread(folder: str, names: Sequence[str], advice: str) -> None:
    """Refuses files whose names say that they hold users, but are not read."""
    others = [name for name in names if _ENDINGS.search(name) and not _is_read(name)]
    # A packed file beside its content is a copy.
    unread = [name for name in others if _ENDINGS.sub(".json", name) not in names]
    if unread:
        raise DataError(
            f"{os.path.join(folder, min(unread))} would be left out, since only names that end in "
            f".json are read; unpack or rename it, or {advice}"
        )


def _read(
    path: str, part: str, convert: Convert, advice: str, left_out: int
) -> Iterator[prepared.Rows]:
    """Yields the users of a file."""
    damaged = "is damaged or not LEAF's"
    with files_lib.reading(path, advice, damaged):
        with open(path, "rb") as file:
            content = files_lib.json_of(files_lib.read_at_most(file))
        users = files_lib.entry(content, "users", list)
        numbers = files_lib.entry(content, "num_samples", list)
        data = files_lib.entry(content, "user_data", dict)
        if len(users) != len(numbers):
            raise ValueError(f"{len(users)} users and {len(numbers)} numbers of examples")
        listed = set(map(files_lib.check_client_id, users))
        for user in data:
            if user not in listed and _examples(data, user) != ([], []):
                raise ValueError(f"user {user!r:.80} has examples but is not listed in users")
    for user, announced in zip(users, numbers, strict=True):
        with files_lib.decoding(path, advice, damaged):
            x, y = _examples(data, user)
            if type(announced) is not int or announced - len(x) not in (0, left_out):
                raise ValueError(
                    f"{len(x)} examples of user {user!r:.80}, announced as {announced!r:.80}"
                )
            rows = prepared.Rows(part, user, convert(x, y))
        yield rows


def _examples(data: Mapping[str, Any], user: str) -> tuple[list, list]:
    own = files_lib.entry(data, user, dict)
    x, y = (files_lib.entry(own, key, list) for key in ("x", "y"))
    if len(x) != len(y):
        raise ValueError(f"{len(x)} examples and {len(y)} labels of user {user!r:.80}")
    return x, y
