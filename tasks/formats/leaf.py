"""Reads LEAF's JSON files of users' examples (Caldas et al. 2018), file by file.

LEAF's scripts leave a folder `data` with `all_data/`, and after sampling and splitting `train/` and
`test/`. A file has `users`, `num_samples` and `user_data` (user -> `x`, `y`); users with all of
their examples are in one file of each folder.
"""

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tasks.formats import files as files_lib
from tasks.formats import prepared
from tasks.task import DataError

# (x, y) as in the file -> rows of each array; raises `ValueError` on what it refuses.
Convert = Callable[[Sequence[Any], Sequence[Any]], Mapping[str, Any]]


def find(data_dir: str, task: str, advice: str) -> dict[str, list[str]]:
    """Returns LEAF's files by part.

    Args:
      data_dir: The folder that LEAF calls `data`, or one above it: LEAF's of the data set, or that
        of all data sets.
      task: Name of the data set.
      advice: Where to get the files and how to point at them, for error texts.

    Returns:
      The paths of `train` and `test` if there are both, else those of `all`; empty without any.

    Raises:
      DataError: If a folder may not be looked into.
    """
    for parent in ("", "data", task, os.path.join(task, "data")):
        folder = os.path.join(data_dir, parent)
        parts = {p: _json_files(os.path.join(folder, p), advice) for p in ("train", "test")}
        if all(parts.values()):
            return parts
        every = _json_files(os.path.join(folder, "all_data"), advice)
        if every:
            return {"all": every}
    return {}


def source(
    files: Mapping[str, Sequence[str]],
    arrays: Mapping[str, prepared.Array],
    convert: Convert,
    advice: str,
) -> prepared.Source:
    """Returns LEAF's files as the source of a set, a piece each.

    Args:
      files: What `find` returns.
      arrays: The arrays that `convert` makes.
      convert: Makes rows of a user's examples.
      advice: Where to get the files and how to point at them, for error texts.
    """
    pieces = []
    for part, paths in files.items():
        for path in paths:
            read = functools.partial(_read, path, part, convert, advice)
            name = os.path.join(part, os.path.basename(path))
            with files_lib.reading(path, advice):
                pieces.append(prepared.Piece(name, os.path.getsize(path), read))
    return prepared.Source(arrays, pieces)


def prepare(
    task: str,
    source_dir: str,
    data_dir: str,
    arrays: Mapping[str, prepared.Array],
    convert: Convert,
    advice: str,
    published: Mapping[str, int],
) -> prepared.Outcome:
    """Makes a prepared set of LEAF's files, for `tasks.prepare`.

    Args:
      task: Name of the data set.
      source_dir: Where LEAF's files are, see `find`.
      data_dir: Where the set goes.
      arrays: See `source`, as for the two that follow.
      convert: See there.
      advice: See there.
      published: See `prepared.write`.

    Raises:
      DataError: If a file is missing or damaged.
    """
    files = find(source_dir, task, advice)
    if not files:
        raise DataError(f"{source_dir} has no LEAF files (all_data, or train and test); {advice}")
    return prepared.write(source(files, arrays, convert, advice), data_dir, task, published)


def _json_files(folder: str, advice: str) -> list[str]:
    if not (files_lib.exists(folder, advice) and os.path.isdir(folder)):
        return []
    with files_lib.decoding(folder, advice):
        names = os.listdir(folder)
    return sorted(os.path.join(folder, name) for name in names if name.endswith(".json"))


def _read(path: str, part: str, convert: Convert, advice: str) -> Iterator[prepared.Rows]:
    """Yields the users of a file."""
    damaged = "is damaged or not LEAF's"
    with files_lib.reading(path, advice, damaged):
        with open(path, "rb") as file:
            content = files_lib.json_of(files_lib.read_at_most(file))
        users = files_lib.entry(content, "users", list)
        numbers = files_lib.entry(content, "num_samples", list)
        data = files_lib.entry(content, "user_data", dict)
        if not len(users) == len(numbers) == len(data):
            raise ValueError(f"{len(users)} users, {len(numbers)} numbers, data of {len(data)}")
    for user, announced in zip(users, numbers, strict=True):
        with files_lib.decoding(path, advice, damaged):
            name = files_lib.check_client_id(user)
            own = files_lib.entry(data, name, dict)
            x, y = (files_lib.entry(own, key, list) for key in ("x", "y"))
            if type(announced) is not int or not len(x) == len(y) == announced:
                raise ValueError(
                    f"{len(x)} examples and {len(y)} labels of user {user!r}, announced as "
                    f"{announced}"
                )
            rows = prepared.Rows(part, name, convert(x, y))
        yield rows
