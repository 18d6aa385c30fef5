"""Sets of examples in a form that loads at once: raw arrays on disk, mapped into memory.

A set is a folder `<task>.prepared` with one raw little-endian file per array and `manifest.json`.
The manifest has every file's type, shape, size and SHA-256, and says which rows belong to which
client.

`write` makes the set piece by piece in a folder `<task>.preparing` with a journal. A process that
is killed at any moment resumes after the last complete piece. Only a complete set gets its final
name.
"""

import glob
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import filelock
import numpy as np

from tasks.formats import files as files_lib
from tasks.task import DataError, files
from tff_suite import command_line, memory, writing

_FORMAT = 1
_MANIFEST = "manifest.json"
_JOURNAL = "journal.jsonl"
_RAGGED = "bytes"


class Array(NamedTuple):
    """Type and shape of an array of a set.

    Attributes:
      dtype: NumPy's name of the type; `None` for byte strings of unequal length.
      shape: Shape of a row, without the first dimension.
    """

    dtype: str | None
    shape: tuple[int, ...] = ()


class Rows(NamedTuple):
    """Some rows of one client in one part of a set.

    Attributes:
      part: Name of the part, e.g. `train`.
      client: Name of the client; empty in sets without clients.
      arrays: The rows of every array: `[n, ...]`, or n byte strings.
    """

    part: str
    client: str
    arrays: Mapping[str, np.ndarray | Sequence[bytes]]


class Piece(NamedTuple):
    """A piece of the raw files that is read as a whole.

    Attributes:
      name: Its name, e.g. the file's path below the source folder.
      size: Its size, for the progress bar, and to detect changes.
      read: Reads it; raises `DataError` if it is damaged.
    """

    name: str
    size: int
    read: Callable[[], Iterable[Rows]]


class Source(NamedTuple):
    """Raw files from which a set is made.

    Attributes:
      arrays: The set's arrays by name.
      pieces: The raw files' pieces in order. All rows of a client in one part come from one piece;
        without clients, all rows of one part follow each other.
      unit: Unit of the pieces' sizes, for the progress bar.
    """

    arrays: Mapping[str, Array]
    pieces: Sequence[Piece]
    unit: str = "B"

    @property
    def made_of(self) -> list:
        """Name and size of each piece, as in a set's manifest."""
        return [[piece.name, piece.size] for piece in self.pieces]


class Outcome(NamedTuple):
    """What `python -m tasks.prepare` made or found.

    Attributes:
      path: The file or folder that the task reads.
      new: Whether this call made it.
      counts: Name → number found, and the published number or `None`.
    """

    path: str
    new: bool
    counts: Mapping[str, tuple[int, int | None]]


class Ragged:
    """Byte strings of unequal length, joined in one array; an index gives `bytes`.

    Attributes:
      files: See `tasks.task.files`.
    """

    def __init__(self, values: np.ndarray, ends: np.ndarray):
        """Initialises the strings.

        Args:
          values: All bytes, uint8 `[n]`.
          ends: Where each string ends, int64 `[number of strings]`.
        """
        self._values = values
        self._ends = ends
        self.files = files(values) + files(ends)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, row: int) -> bytes:
        start = self._ends[row - 1] if row else 0
        return self._values[start : self._ends[row]].tobytes()


class Prepared(NamedTuple):
    """A set of examples.

    Attributes:
      arrays: The arrays of numbers by name, `[rows, ...]`: read-only memory maps, or in memory.
      strings: Those of byte strings by name.
      parts: For each part the rows of each client, which are consecutive.
    """

    arrays: Mapping[str, np.ndarray]
    strings: Mapping[str, Ragged]
    parts: Mapping[str, Mapping[str, range]]

    def rows_of_clients(self, *parts: str) -> dict[str, np.ndarray]:
        """Returns each client's rows in some parts together, int64, in the order of parts."""
        rows = {}
        for part in parts:
            for client, own in self.parts.get(part, {}).items():
                rows.setdefault(client, []).append(np.arange(own.start, own.stop))
        return {client: np.concatenate(own) for client, own in rows.items()}


def find(data_dir: str, task: str, advice: str) -> str | None:
    """Returns the folder of a task's set in `data_dir`, or `None` if there is none.

    Args:
      data_dir: Folder to look in.
      task: Name of the task.
      advice: Where to get the files and how to point at them, for error texts.

    Raises:
      DataError: If `data_dir` may not be read.
    """
    path = os.path.join(data_dir, f"{task}.prepared")
    return path if files_lib.exists(path, advice) else None


def warn_if_older(folder: str, raw: Iterable[str]) -> None:
    """Warns that raw files beside a set changed after it was made; the set is still used.

    Args:
      folder: The set's folder.
      raw: Paths of raw files, or of folders in which files may have been added or removed.
    """
    try:
        made = os.path.getmtime(os.path.join(folder, _MANIFEST))
        newer = [path for path in raw if os.path.getmtime(path) > made]
    except OSError:  # Whoever reads the set says what is wrong with it.
        return
    if newer:
        command_line.warn(
            f"reading the prepared data in {folder}, although {newer[0]} is newer; if its content "
            f"changed, remove {folder} and run python -m tasks.prepare again"
        )


def made_of(folder: str, advice: str) -> list | None:
    """Returns name and size of each piece from which a set was made.

    Raises:
      DataError: If the manifest is missing or damaged.
    """
    return _read_manifest(folder, advice).get("made_of")


def read(
    folder: str,
    advice: str,
    arrays: Mapping[str, Array],
    parts: Iterable[str] | None = None,
    num_classes: int | None = None,
) -> Prepared:
    """Opens a set; of its arrays only labels and the ends of byte strings are read.

    Args:
      folder: The set's folder.
      advice: How to fix it, for error messages.
      arrays: The arrays that it must have.
      parts: If set, the parts that it must have, each with one unnamed client.
      num_classes: If set, the array `y` holds labels below it.

    Raises:
      DataError: If the manifest is damaged, a file is missing or has another size, or values are
        out of range. Also if the set does not have those arrays and parts.
    """
    manifest = _read_manifest(folder, advice)
    path = os.path.join(folder, _MANIFEST)
    damaged = "is damaged"
    with files_lib.decoding(path, advice, damaged):
        own = files_lib.entry(manifest, "arrays", dict)
        wanted = {
            name: {"dtype": _little(array.dtype), "shape": list(array.shape)}
            for name, array in arrays.items()
        }
        if own != wanted:
            raise ValueError(f"its arrays are {own!s:.200} and not {wanted}")
        num_rows = files_lib.entry(manifest, "rows", int)
        of_clients = _ranges(files_lib.entry(manifest, "clients", list))
        held = sum(len(rows) for clients in of_clients.values() for rows in clients.values())
        if held != num_rows:
            raise ValueError(f"it has {num_rows} rows, but its clients have {held} in total")
        if parts is not None and {part: set(c) for part, c in of_clients.items()} != {
            part: {""} for part in parts
        }:
            raise ValueError(f"its parts are {list(of_clients)!s:.200} instead of {list(parts)}")
    mapped: dict[str, np.ndarray] = {}
    strings = {}
    for name, array in arrays.items():
        shape = (num_rows, *array.shape)
        if array.dtype is None:
            values = _map(folder, f"{name}.values", "|u1", None, manifest, advice)
            ends = _map(folder, f"{name}.ends", "<i8", shape, manifest, advice)
            with files_lib.decoding(os.path.join(folder, f"{name}.ends"), advice, damaged):
                if np.any(np.diff(ends, prepend=0) < 0) or ends[-1:].sum() != len(values):
                    raise ValueError("the ends of the strings are not in increasing order")
            strings[name] = Ragged(values, ends)
        else:
            mapped[name] = _map(folder, name, _little(array.dtype), shape, manifest, advice)
    if num_classes is not None:
        with files_lib.decoding(os.path.join(folder, "y"), advice, damaged):
            files_lib.check_labels(mapped["y"], num_classes)
    return Prepared(mapped, strings, of_clients)


def verify(folder: str, advice: str, arrays: Mapping[str, Array]) -> dict[str, Any]:
    """Reads a set's files and compares sizes and checksums with its manifest.

    Args:
      folder: The set's folder.
      advice: How to fix it, for error texts.
      arrays: The arrays that it must have.

    Returns:
      The manifest.

    Raises:
      DataError: If a file differs; the message names it.
    """
    read(folder, advice, arrays)
    manifest = _read_manifest(folder, advice)
    for name in _file_names(arrays):
        path = os.path.join(folder, name)
        with files_lib.decoding(path, advice):
            same = _sha256(path) == files_lib.entry(manifest["files"][name], "sha256", str)
        if not same:
            raise DataError(f"{path} is damaged: its checksum differs; {advice}")
    return manifest


def in_memory(source: Source) -> Prepared:
    """Reads raw files into memory as the set that `write` would make from them.

    Raises:
      DataError: If a file is damaged or a client is in two pieces of one part.
    """
    clients, collected = _Clients(), {name: [] for name in source.arrays}
    for piece in source.pieces:
        for rows in piece.read():
            clients.add(rows, piece)
            for name, values in rows.arrays.items():
                collected[name].append(values)
    arrays: dict[str, np.ndarray] = {}
    strings = {}
    for name, array in source.arrays.items():
        if array.dtype is None:
            own = [s for part in collected[name] for s in part]
            ends = np.cumsum([len(s) for s in own], dtype=np.int64)
            strings[name] = Ragged(np.frombuffer(b"".join(own), np.uint8), ends)
        else:
            empty = np.zeros((0, *array.shape), array.dtype)
            arrays[name] = np.concatenate([empty, *collected[name]], dtype=array.dtype)
    return Prepared(arrays, strings, _ranges(clients.counts))


def write(
    source: Source, data_dir: str, task: str, published: Mapping[str, int] | None = None
) -> Outcome:
    """Makes a set from raw files; work of an earlier, interrupted call is kept.

    An existing set is checked and left unchanged.

    Args:
      source: The raw files.
      data_dir: Folder to make the set in.
      task: Name of the task.
      published: Published numbers of examples (`examples`), of clients (`clients`) and of each
        part's examples (by the part's name), to be printed beside those found.

    Returns:
      The set's folder and its counts.

    Raises:
      DataError: If a raw file or the set is damaged, the set was made from different files, the
        disk refuses, or another process is making the set.
    """
    final = os.path.join(data_dir, f"{task}.prepared")
    advice = f"remove {final} and run the same command again"
    if files_lib.exists(final, advice):
        manifest = verify(final, advice, source.arrays)
        if manifest.get("made_of") != source.made_of:
            raise DataError(f"{final} was made from different files; {advice}")
        return Outcome(final, False, _counts(final, advice, source.arrays, published or {}))
    try:
        os.makedirs(data_dir, exist_ok=True)
        with filelock.FileLock(os.path.join(data_dir, f".{task}.preparing.lock"), timeout=0):
            _Writer(source, os.path.join(data_dir, f"{task}.preparing")).write(final)
    except filelock.Timeout as error:
        raise DataError(f"another process is preparing {final}; wait for it") from error
    except OSError as error:
        reason = error.strerror or error
        raise DataError(
            f"{error.filename or data_dir} cannot be written ({reason}); fix that and run the "
            "same command again, it resumes where it stopped"
        ) from error
    return Outcome(final, True, _counts(final, advice, source.arrays, published or {}))


def _counts(
    folder: str, advice: str, arrays: Mapping[str, Array], published: Mapping[str, int]
) -> dict:
    parts = read(folder, advice, arrays).parts
    reached = {
        "clients": len({client for part in parts.values() for client in part if client}),
        "examples": sum(len(rows) for part in parts.values() for rows in part.values()),
        **{part: sum(map(len, clients.values())) for part, clients in parts.items()},
    }
    return {
        name: (count, published.get(name))
        for name, count in reached.items()
        if count or name in published
    }


class _Writer:
    """Makes a set in a separate folder, which is renamed at the end."""

    def __init__(self, source: Source, folder: str):
        self._source = source
        self._folder = folder
        self._journal = os.path.join(folder, _JOURNAL)
        self._names = _file_names(source.arrays)

    def write(self, final: str) -> None:
        import tqdm  # Slow to import, and needed nowhere else in this module.

        done = self._go_on()
        total = sum(piece.size for piece in self._source.pieces)
        clients = _Clients(c for line in done for c in line["clients"])
        files = {
            name: writing.open_to_append(os.path.join(self._folder, name)) for name in self._names
        }
        bar = tqdm.tqdm(
            total=total,
            unit=self._source.unit,
            unit_scale=True,
            dynamic_ncols=True,
            mininterval=0.5,
        )
        with bar:
            bar.update(sum(piece.size for piece in self._source.pieces[: len(done)]))
            for piece in self._source.pieces[len(done) :]:
                bar.set_postfix_str(piece.name)
                before = len(clients.counts)
                self._append(piece, files, clients)
                self._record(piece, files, clients.counts[before:])
                bar.update(piece.size)
        for file in files.values():
            file.close()
        self._finish(clients.counts, final)

    def _go_on(self) -> list[dict[str, Any]]:
        """Returns the finished pieces, truncating later writes; starts afresh if there are none."""
        pieces = self._source.made_of
        try:
            done = self._done(pieces)
        except Exception:  # Whatever is wrong with what was left, it is made again.
            done = []
        if not done:
            if os.path.isdir(self._folder) and not os.path.islink(self._folder):
                shutil.rmtree(self._folder, ignore_errors=True)
            elif os.path.lexists(self._folder):
                os.remove(self._folder)
            os.makedirs(self._folder)
            return []
        for name, size in done[-1]["files"].items():
            os.truncate(os.path.join(self._folder, name), size)
        lines = "".join(json.dumps(line) + "\n" for line in done)
        writing.write_atomically(self._journal, lines.encode())
        print(f"Resuming after {len(done)} of {len(pieces)} pieces.", file=sys.stderr)
        return done

    def _done(self, pieces: Sequence[Sequence]) -> list[dict[str, Any]]:
        """Returns the journal's lines if they match these pieces and files, else an empty list."""
        done = []
        paths = [self._folder, *glob.glob(f"{glob.escape(self._folder)}/*")]
        if any(map(writing.is_link, paths)):
            return []
        with open(self._journal, encoding="utf-8") as file:
            for line in file:
                # The last line is torn if the process was killed while it was written.
                if not line.endswith("\n"):
                    break
                done.append(files_lib.json_of(line))
        if [line["piece"] for line in done] != pieces[: len(done)]:
            return []
        for _, client, count in (client for line in done for client in line["clients"]):
            if not isinstance(client, str) or type(count) is not int or count < 0:
                return []
        sizes = done[-1]["files"]
        if set(sizes) != set(self._names):
            return []
        # A file that is shorter would be filled up with zeros.
        for name, size in sizes.items():
            if not 0 <= size <= os.path.getsize(os.path.join(self._folder, name)):
                return []
        return done

    def _append(self, piece: Piece, files: Mapping[str, Any], clients: "_Clients") -> None:
        for rows in piece.read():
            clients.add(rows, piece)
            for name, array in self._source.arrays.items():
                values = rows.arrays[name]
                if array.dtype is None:
                    start = files[f"{name}.values"].tell()
                    ends = start + np.cumsum([len(s) for s in values], dtype="<i8")
                    files[f"{name}.values"].write(b"".join(values))
                    files[f"{name}.ends"].write(ends.tobytes())
                    continue
                values = np.asarray(values, _little(array.dtype))
                if values.shape[1:] != array.shape:
                    raise ValueError(f"{name} of {piece.name} has rows of shape {values.shape[1:]}")
                files[name].write(values.tobytes())

    def _record(self, piece: Piece, files: Mapping[str, Any], clients: Sequence[tuple]) -> None:
        for file in files.values():
            file.flush()
            os.fsync(file.fileno())
        line = {
            "piece": [piece.name, piece.size],
            "files": {name: file.tell() for name, file in files.items()},
            "clients": clients,
        }
        with writing.open_to_append(self._journal, "a", encoding="utf-8") as journal:
            journal.write(json.dumps(line) + "\n")
            journal.flush()
            os.fsync(journal.fileno())

    def _finish(self, clients: Sequence[tuple[str, str, int]], final: str) -> None:
        paths = {name: os.path.join(self._folder, name) for name in self._names}
        manifest = {
            "format": _FORMAT,
            "rows": sum(n for _, _, n in clients),
            "arrays": {
                name: {"dtype": _little(array.dtype), "shape": list(array.shape)}
                for name, array in self._source.arrays.items()
            },
            "files": {
                name: {"bytes": os.path.getsize(path), "sha256": _sha256(path)}
                for name, path in paths.items()
            },
            "made_of": self._source.made_of,
            "clients": clients,
        }
        path = os.path.join(self._folder, _MANIFEST)
        writing.write_atomically(path, json.dumps(manifest).encode())
        os.rename(self._folder, final)
        os.remove(os.path.join(final, _JOURNAL))


def _file_names(arrays: Mapping[str, Array]) -> list[str]:
    """Returns the names of the files of a set's arrays."""
    names = []
    for name, array in arrays.items():
        names += [f"{name}.values", f"{name}.ends"] if array.dtype is None else [name]
    return names


def _little(dtype: str | None) -> str:
    return _RAGGED if dtype is None else np.dtype(dtype).newbyteorder("<").str


class _Clients:
    """The numbers of rows of clients in parts, in the order in which they were written."""

    def __init__(self, counts: Iterable[Sequence] = ()):
        self.counts = [tuple(count) for count in counts]
        self._seen = {(part, client) for part, client, _ in self.counts}

    def add(self, rows: Rows, piece: Piece) -> None:
        counts = {len(values) for values in rows.arrays.values()}
        if len(counts) != 1:
            raise ValueError(f"{piece.name}: arrays of client {rows.client!r} differ in length")
        if rows.client and (rows.part, rows.client) in self._seen:
            raise DataError(
                f"{piece.name} has client {rows.client!r} of {rows.part!r}, which was already "
                "read; leave only the files of one set in the folder"
            )
        self._seen.add((rows.part, rows.client))
        self.counts.append((rows.part, rows.client, counts.pop()))


def _ranges(clients: Iterable[tuple[str, str, int]]) -> dict[str, dict[str, range]]:
    parts, start = {}, 0
    for part, client, count in clients:
        if not isinstance(part, str) or type(count) is not int or count < 0:
            raise ValueError(f"{count!r:.80} rows in part {part!r:.80}")
        if client != "":
            files_lib.check_client_id(client)
        own = parts.setdefault(part, {}).get(client, range(start, start))
        if own.stop != start:
            raise ValueError(f"rows of {part!r} are not consecutive")
        parts[part][client] = range(own.start, start + count)
        start += count
    return parts


def _read_manifest(folder: str, advice: str) -> dict[str, Any]:
    path = os.path.join(folder, _MANIFEST)
    with files_lib.reading(path, advice):
        with open(path, "rb") as file:
            manifest = files_lib.json_of(file.read())
        if files_lib.entry(manifest, "format", int) != _FORMAT:
            raise ValueError(f"format {manifest['format']}, not {_FORMAT}")
    return manifest


def _map(
    folder: str,
    name: str,
    dtype: str,
    shape: tuple[int, ...] | None,
    manifest: Mapping[str, Any],
    advice: str,
) -> np.ndarray:
    """Maps a file into memory as a read-only array; `shape` is `None` for all of its bytes."""
    with files_lib.decoding(os.path.join(folder, _MANIFEST), advice, "is damaged"):
        file = files_lib.entry(files_lib.entry(manifest, "files", dict), name, dict)
        announced = files_lib.entry(file, "bytes", int)
    path = os.path.join(folder, name)
    with files_lib.reading(path, advice):
        size = os.path.getsize(path)
    shape = (announced,) if shape is None else shape
    needed = memory.size_of(shape, np.dtype(dtype))
    if not size == announced == needed:
        raise DataError(
            f"{path} is damaged: it has {size} bytes of {max(announced, needed)}; {advice}"
        )
    if not size:  # Nothing can't be mapped.
        return np.zeros(shape, dtype)
    with files_lib.decoding(path, advice):
        return np.memmap(path, dtype, mode="r", shape=shape)


def _sha256(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
