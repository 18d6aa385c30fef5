"""`table`: your own CSV file, one row per example; see `tasks.frames`.

With `use_synthetic_data` it is a small generated table of 12 users.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import dataclasses
import functools
import lzma
import os
import re
import sys
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks import frames, settings
from tasks.models import models
from tasks.registry import TaskSpec
from tasks.tables.table import NAME
from tasks.tables.target import TARGET_TYPES
from tasks.task import DataError, Task
from tff_suite import command_line, imports, user_warnings
from tff_suite.hparams import By, Hparam, HparamError, Settings

if TYPE_CHECKING:
    import pandas as pd

_LINEAR = "linear"
# What pandas raises of a file that is not packed as its ending says.
_PACKED_WRONGLY = (
    EOFError,
    ImportError,
    lzma.LZMAError,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
)


def _metrics(given: Settings) -> Sequence[str] | None:
    """Returns the metrics' names; for `auto` only the table determines them."""
    names = {
        "category": ("accuracy",),
        "number": ("mse", "mae"),
    }
    return names.get(given["target_type"])


def _check(given: Settings) -> None:
    kinds = [name for name in ("features", "text", "image") if given[name] is not None]
    if len(kinds) > 1:
        raise HparamError(f"table: give one of {' and '.join(kinds)}.")
    if given["model"] == _LINEAR and kinds and kinds != ["features"]:
        raise HparamError(f"table: model={_LINEAR} takes features; name a model of {kinds[0]}.")
    if given["user"] is not None and given["partition"] != "user":
        raise HparamError("table: partition is not used with user, whose values are the clients.")


def _check_data(given: Settings) -> None:
    missing = [f"--table_{name}" for name in ("path", "target") if given[name] is None]
    if given["partition"] == "user" and given["user"] is None:
        missing.append("--table_user (or --table_partition)")
    if missing:
        raise HparamError(f"--task=table needs {', '.join(missing)}.")


SPEC = TaskSpec(
    name="table",
    summary="Your own CSV file: one row per example, and a column of users.",
    metrics=_metrics,
    check=_check,
    check_data=_check_data,
    own_code=True,
    hparams=(
        Hparam(
            "path",
            None,
            "CSV file with a header, relative to --data_dir if that is given. Required.",
            "none",
            type=str,
        ),
        Hparam(
            "user",
            None,
            "Column of users; each user is a client. Required unless partition draws clients.",
            "none",
            type=str,
        ),
        Hparam("target", None, "Column to predict. Required.", "none", type=str),
        Hparam(
            "features",
            None,
            "Columns of inputs, separated by commas. Default: all other columns of numbers, unless "
            "text or image is set.",
            "choice",
            type=str,
        ),
        Hparam("text", None, "Optional column of text, the input.", "choice", type=str),
        Hparam(
            "image",
            None,
            "Optional column of image paths, the input. Each CSV file's paths are relative to the "
            "file's own folder.",
            "choice",
            type=str,
        ),
        Hparam("id", None, "Optional column of row names, which must differ.", "none", type=str),
        Hparam(
            "model",
            _LINEAR,
            "my_module:function, which returns a built Keras model for a seed; its output is "
            f"logits or one number. {_LINEAR} is one dense layer on the features.",
            "choice",
        ),
        Hparam(
            "target_type",
            "auto",
            "category learns by cross-entropy, number by squared error; auto is category for text "
            "and booleans.",
            "choice",
            choices=("auto", *TARGET_TYPES),
        ),
        Hparam(
            "test_fraction",
            0.2,
            "Share of each client's rows that are its test rows, drawn by partition_seed and its "
            "id. With test_path, none are drawn.",
            "choice",
            minimum=0,
            maximum=1,
            exclusive_maximum=True,
        ),
        Hparam(
            "test_path",
            None,
            "Optional CSV file of test rows. If it has the user column, each user is also tested "
            "on their own rows.",
            "choice",
            type=str,
        ),
        Hparam(
            "standardize",
            False,
            "Whether features are shifted and scaled to mean 0 and deviation 1 over training rows.",
            "choice: as they are",
        ),
        Hparam(
            "partition",
            "user",
            "How rows are assigned to clients: by user, or at random by dirichlet, shards or iid.",
            "choice",
            choices=("user", *frames.PARTITIONS),
        ),
        Hparam(
            "num_clients",
            By("partition", dict.fromkeys(frames.PARTITIONS, 10)),
            "Number of clients that the partition draws.",
            "choice",
            minimum=1,
            maximum=settings.MAX_CLIENTS,
        ),
        Hparam(
            "alpha",
            By("partition", {"dirichlet": 0.5}),
            "Concentration of clients' label proportions.",
            "choice",
            **settings.CONCENTRATIONS,
        ),
        Hparam(
            "shards_per_client",
            By("partition", {"shards": 2}),
            "Shards per client.",
            "McMahan et al. 2017",
            minimum=1,
        ),
        settings.partition_seed("drawn clients and of the test split"),
    ),
)


def load(
    *,
    data_dir: str | None,
    seed: int,
    use_synthetic_data: bool,
    path: str | None,
    user: str | None,
    target: str | None,
    features: str | None,
    text: str | None,
    image: str | None,
    id: str | None,
    model: str,
    target_type: str,
    test_fraction: float,
    test_path: str | None,
    standardize: bool,
    partition: str,
    num_clients: int | None,
    alpha: float | None,
    shards_per_client: int | None,
    partition_seed: int,
) -> Task:
    """Makes the task; see `SPEC` for the settings and `tasks.load` for the rest."""
    del seed
    if use_synthetic_data:
        user, target, partition = "user", "kind", "user"
        features = text = image = id = test_path = None
    assert target is not None  # See _check_data.
    as_written = [c for c in (user, id, text, image) if c]
    read = functools.partial(
        _read, as_written=as_written, target=target, target_type=target_type, image=image
    )
    drawn: dict[str, Any] = {
        "num_clients": num_clients,
        "alpha": alpha,
        "shards_per_client": shards_per_client,
    }
    named = None if features is None else next(csv.reader([features]))
    with _told_on_standard_error():
        if use_synthetic_data:
            frame = _synthetic()
        else:
            assert path is not None  # See _check_data.
            path = _place(path, data_dir)
            frame = read("--table_path", path)
            if text is None and image is None:
                _report_padded(path, frame, named, others=(user, id, target))
        task = frames.from_frame(
            frame,
            user=user,
            target=target,
            model=models.softmax_regression if model == _LINEAR else _function(model),
            features=named,
            text=text,
            image=image,
            id=id,
            target_type=None if target_type == "auto" else target_type,
            test=test_fraction,
            test_frame=test_path
            and read("--table_test_path", _place(test_path, data_dir), texts=_texts(frame)),
            standardize=standardize,
            partition=None if partition == "user" else partition,
            seed=partition_seed,
            name="table",
            **{name: value for name, value in drawn.items() if value is not None},
        )
    classes = task.encoding.get("classes")
    changes: dict[str, Any] = {
        "settings": {"target_type": "number" if classes is None else "category"}
    }
    if model == _LINEAR:
        changes["keras_model_fn"] = functools.partial(
            models.softmax_regression,
            num_inputs=len(task.train.examples(0).x[0]),
            num_classes=1 if classes is None else len(classes),
            init="keras",
        )
    return dataclasses.replace(task, **changes)


def _place(path: str, data_dir: str | None) -> str:
    return os.path.join(data_dir or "", os.path.expanduser(path))


def _read(
    flag: str,
    path: str,
    as_written: Sequence[str],
    target: str,
    target_type: str,
    image: str | None = None,
    texts: Sequence[str] = (),
) -> pd.DataFrame:
    """Reads a CSV file.

    Args:
      flag: Name of the flag that gave the path.
      path: The path.
      as_written: Columns whose values stay text, even `007` and `NA`; an empty value is missing.
      target: Column of targets; categories stay text, too, but `NA` is missing.
      target_type: As the setting.
      image: Column of paths, relative to the file's folder. Another file may have the same ones.
      texts: Further columns whose values stay text, even `007`, but `NA` is missing.

    Raises:
      DataError: If it cannot be read.
    """
    import pandas as pd

    header = pd.Series(dtype=str)
    try:
        header = pd.read_csv(path, header=None, nrows=1, dtype=str).iloc[0]
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            # By default pandas takes values beyond the header's for row names: columns shift.
            # By default pandas decides on the type of each part of a column apart.
            frame = pd.read_csv(path, index_col=False, low_memory=False)
        # "NA" may be a user's name, but is a missing number elsewhere.
        text = pd.read_csv(
            path,
            index_col=False,
            usecols={*as_written, target, *texts}.__contains__,
            dtype=str,
            keep_default_na=False,
            na_values=[""],
        )
    except OSError as e:
        reason = e.strerror or e
        raise DataError(f"{flag}={path} cannot be read: {reason}; name a CSV file") from e
    except _PACKED_WRONGLY as e:
        reason = " ".join(str(e).split())
        raise DataError(f"{flag}={path} cannot be unpacked: {reason}; unpack it yourself") from e
    except UnicodeDecodeError as e:
        _refuse_other_formats(flag, path)
        form = "UTF-16" if e.object[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "CP1252"
        raise DataError(
            f"{flag}={path} is not in UTF-8; convert it, for example by "
            f"iconv -f {form} -t UTF-8 OLD.csv > NEW.csv."
        ) from e
    except pd.errors.ParserWarning as e:
        _refuse_other_separators(flag, path, header)
        _refuse_comments(flag, path, header)
        raise DataError(
            f"{flag}={path} has rows with more values than the header has names "
            f"({', '.join(map(str, header))}); name each column, also that of row names."
        ) from e
    except pd.errors.EmptyDataError as e:
        raise DataError(f"{flag}={path} is empty; name a CSV file with a header.") from e
    except ValueError as e:  # Of pandas's errors.
        _refuse_other_formats(flag, path)
        _refuse_other_separators(flag, path, header)
        _refuse_comments(flag, path, header)
        raise DataError(
            f"{flag}={path} is not a CSV file: {' '.join(str(e).split())}. It must have a header, "
            "be separated by commas and have as many values in each row."
        ) from e
    _refuse_other_separators(flag, path, header)
    _refuse_stray_quotes(flag, path, frame)
    twice = header[header.duplicated() & header.notna()].tolist()
    if twice:
        raise DataError(f"{flag}={path} has two columns named {twice[0]!r}; rename one.")
    own = {str(column): text[column] for column in text if column in as_written}
    own |= {c: text[c].where(frame[c].notna()) for c in texts if c in text and c not in own}
    if target in text and target not in own:
        written = text[target].where(frame[target].notna())
        if target_type == "category":
            own[target] = written.astype(pd.CategoricalDtype(_in_order(written.dropna().unique())))
        elif target_type == "auto":
            _report_codes(target, written, frame[target])
    if image in own:
        below = functools.partial(os.path.join, os.path.dirname(path))
        own[image] = own[image].map(below, na_action="ignore")
    frame = frame.assign(**own)
    frame.attrs[NAME] = path
    return frame


def _texts(frame: pd.DataFrame) -> list[str]:
    """Returns the columns of a table that hold text."""
    return [c for c in frame if any(isinstance(value, str) for value in frame[c])]


def _refuse_other_formats(flag: str, path: str) -> None:
    """Refuses files of other formats that hold tables, by their first bytes."""
    try:
        with open(path, "rb") as file:
            start = file.read(8)
        of_excel = False
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as parts:
                of_excel = any(name.startswith("xl/") for name in parts.namelist())
    except (OSError, zipfile.BadZipFile):
        return
    name = os.path.basename(path)
    kinds = {
        "Parquet file": (f"read_parquet({name!r})", start[:4] == b"PAR1"),
        "Feather file": (f"read_feather({name!r})", start[:6] in (b"ARROW1", b"FEA1\0\0")),
        "ORC file": (f"read_orc({name!r})", start[:3] == b"ORC" and start[3:4] < b" "),
        "HDF5 file": (f"read_hdf({name!r})", start == b"\x89HDF\r\n\x1a\n"),
        "NumPy file": (f"DataFrame(numpy.load({name!r}))", start[:6] == b"\x93NUMPY"),
        # The second is Excel's format before 2007.
        "Excel file": (f"read_excel({name!r})", of_excel or start[:4] == b"\xd0\xcf\x11\xe0"),
        "pickle": (f"read_pickle({name!r})", start[:1] == b"\x80"),
        "database of SQLite": (
            f"read_sql('SELECT * FROM TABLE', sqlite3.connect({name!r}))",
            start == b"SQLite f",
        ),
    }
    for kind, (call, found) in kinds.items():
        if found:
            raise DataError(
                f"{flag}={path} is of another format ({kind}); convert it, for example by "
                f"pandas.{call}.to_csv('NEW.csv', index=False)."
            )
    # By their endings, pandas unpacks them.
    packed = {
        rb"\x1f\x8b": ".gz",
        rb"BZh\d1AY": ".bz2",
        rb"\xfd7zXZ": ".xz",
        rb"\x28\xb5\x2f": ".zst",
    }
    ending = next((e for first, e in packed.items() if re.match(first, start)), "")
    if ending and not path.endswith(ending):
        raise DataError(f"{flag}={path} is packed; give its name the ending {ending}.")


def _refuse_other_separators(flag: str, path: str, header: pd.Series) -> None:
    first = str(header.iloc[0]) if len(header) else ""
    if first.startswith("sep="):
        raise DataError(f"{flag}={path} begins with a line for Excel, {first!r}; delete that line.")
    if len(header) == 1 and re.search("[;\t]", first):
        separator = "\t" if "\t" in first else ";"
        decimal = ", decimal=','" if _has_decimal_commas(path, separator) else ""
        raise DataError(
            f"{flag}={path} is not separated by commas; convert it, for example by "
            f"pandas.read_csv('OLD.csv', sep={separator!r}{decimal})"
            ".to_csv('NEW.csv', index=False)."
        )


def _has_decimal_commas(path: str, separator: str) -> bool:
    """Returns whether the first rows of a file have numbers such as `1,5`."""
    import pandas as pd

    try:
        frame = pd.read_csv(path, sep=separator, nrows=100, dtype=str, index_col=False)
    except ValueError:  # It is refused anyway.
        return False
    return any(frame[c].str.fullmatch(r"[+-]?\d*,\d+", na=False).any() for c in frame)


def _refuse_comments(flag: str, path: str, header: pd.Series) -> None:
    if len(header) and str(header.iloc[0]).startswith("#"):
        raise DataError(
            f"{flag}={path} begins with {header.iloc[0]!r}, not with its columns' names; delete "
            "that line."
        )


def _refuse_stray_quotes(flag: str, path: str, frame: pd.DataFrame) -> None:
    """Refuses rows that a single quotation mark joins to one value of several lines."""
    import pandas as pd

    for column in frame.select_dtypes(["object", "string"]):
        of_lines = frame[column].astype(str).str.contains("\n", regex=False)
        if of_lines.any():
            break
    else:
        return
    try:
        # Slower, but unlike the default it refuses text between a closing mark and the comma.
        pd.read_csv(path, index_col=False, engine="python")
    except pd.errors.ParserError as e:
        raise DataError(
            f"{flag}={path}, row {of_lines.argmax() + 1}: {column!r} has several lines, and the "
            "file has text after a closing quotation mark, so rows may be joined. Write every "
            "quotation mark within a value twice."
        ) from e


def _in_order(classes: Sequence[str]) -> list[str]:
    """Returns classes in their order: by number if all are numbers, otherwise by the alphabet."""
    ordered = sorted(classes)
    try:
        places = np.argsort(np.array(ordered, np.float64), kind="stable")
    except ValueError:
        return ordered
    return [ordered[k] for k in places]


def _report_codes(name: str, written: pd.Series, read: pd.Series) -> None:
    """Warns of targets that are read as numbers, but look like codes of classes."""
    from pandas.api import types

    codes = written[written.str.fullmatch(r"0\d+", na=False)]
    if len(codes) and types.is_numeric_dtype(read):
        user_warnings.warn(
            f"target {name!r} has {codes.iloc[0]!r}, and is read as a number; if it has codes of "
            "classes, pass --table_target_type=category."
        )


def _report_padded(
    path: str, frame: pd.DataFrame, named: Sequence[str] | None, others: Sequence[str | None]
) -> None:
    """Warns of features that are read as numbers, but look like codes, as those of towns."""
    import pandas as pd
    from pandas.api import types

    used = [c for c in frame if (c in named if named is not None else c not in others)]
    whole = [c for c in used if types.is_integer_dtype(frame[c])]
    # The first rows are enough, and the text of all would need much memory.
    text = pd.read_csv(path, index_col=False, nrows=1000, usecols=whole.__contains__, dtype=str)
    for name in text:
        # Days, months and hours have two digits.
        codes = text[name][text[name].str.fullmatch(r"0\d{2,}", na=False)]
        if len(codes):
            user_warnings.warn(
                f"feature {name!r} has {codes.iloc[0]!r}, and is read as a number; if it has "
                "codes, leave it out by --table_features."
            )


def _function(named: str) -> Callable:
    """Returns the function that `module:function` names; the module may be in the working folder.

    Raises:
      HparamError: If there is no such function.
    """
    module, colon, name = named.partition(":")
    if not (module and colon and name):
        raise HparamError(f"--table_model={named} must be {_LINEAR} or my_module:function.")
    imports.modules_of_ones_own([module], flag="--table_model")
    try:
        return getattr(sys.modules[module], name)
    except AttributeError as e:
        raise HparamError(f"--table_model={named}: {module} has no {name}.") from e


@contextlib.contextmanager
def _told_on_standard_error() -> Iterator[None]:
    """Prints warnings to standard error, in the style of the command."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        yield
    for warning in caught:
        command_line.warn(str(warning.message))


def _synthetic() -> pd.DataFrame:
    """Generates 12 users with 10 to 32 rows; four numbers determine one of three classes."""
    import pandas as pd

    rng = np.random.default_rng(0)
    user = np.repeat(np.arange(12), np.arange(10, 34, 2))
    x = rng.normal(size=(len(user), 4)) + 0.3 * rng.normal(size=(12, 4))[user]
    kind = np.argmax(x @ rng.normal(size=(4, 3)), axis=1)
    columns = {f"x{k}": x[:, k] for k in range(4)}
    names = np.array([f"user{k:02}" for k in range(12)])
    return pd.DataFrame({"user": names[user], **columns, "kind": np.array(list("abc"))[kind]})
