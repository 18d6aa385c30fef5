"""Reads LEAF's JSON files of users' examples (Caldas et al. 2018), file by file.

LEAF's scripts leave a folder `data` with `all_data/`, and after sampling and splitting `train/` and
`test/`. A file has `users`, `num_samples` and `user_data` (user -> `x`, `y`); users with all of
their examples are in one file of each folder.
"""

import functools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tasks import prepared
from tasks.task import DataError

# (x, y) as in the file -> rows of each array; raises `ValueError` on what it refuses.
Convert = Callable[[Sequence[Any], Sequence[Any]], Mapping[str, Any]]


def find(data_dir: str, task: str) -> dict[str, list[str]]:
    """Returns LEAF's files by part.

    Args:
      data_dir: The folder that LEAF calls `data`, or one above it: LEAF's of the data set, or that
        of all data sets.
      task: Name of the data set.

    Returns:
      The paths of `train` and `test` if there are both, else those of `all`; empty without any.
    """
    for parent in ("", "data", task, os.path.join(task, "data")):
        folder = os.path.join(data_dir, parent)
        parts = {part: _json_files(os.path.join(folder, part)) for part in ("train", "test")}
        if all(parts.values()):
            return parts
        every = _json_files(os.path.join(folder, "all_data"))
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
    files = find(source_dir, task)
    if not files:
        raise DataError(f"{source_dir} has no LEAF files (all_data, or train and test); {advice}")
    return prepared.write(source(files, arrays, convert, advice), data_dir, task, published)


def _json_files(folder: str) -> list[str]:
    if not os.path.isdir(folder):
        return []
    return sorted(
        os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".json")
    )


def _read(path: str, part: str, convert: Convert, advice: str) -> Iterator[prepared.Rows]:
    """Yields the users of a file."""
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
        users = list(zip(content["users"], content["num_samples"], strict=True))
        data = content["user_data"]
        if len(data) != len(users):
            raise ValueError(f"{len(users)} users and the data of {len(data)}")
        for user, announced in users:
            x, y = data[user]["x"], data[user]["y"]
            if not len(x) == len(y) == announced:
                raise ValueError(
                    f"{len(x)} examples and {len(y)} labels of user {user!r}, announced as "
                    f"{announced}"
                )
            yield prepared.Rows(part, str(user), convert(x, y))
    except (KeyError, OSError, TypeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise DataError(f"{path} is damaged or not LEAF's ({reason}); {advice}") from error
