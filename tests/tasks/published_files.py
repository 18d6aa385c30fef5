"""Small sets that the publishers' own programs wrote, see `published/README.md`."""

import functools
import pathlib
import tarfile

_FOLDER = pathlib.Path(__file__).parent / "published"

# LEAF's options by data set; the names are explained in the README.
LEAF = {
    "femnist": ("all", "iid", "iid_sample", "k1_user", "niid_k0_sample", "sample_2018"),
    "sent140": (
        "all",
        "iid_sample",
        "niid_k2",
        "niid_k3_sample",
        "niid_user",
        "sample_2018",
    ),
    "shakespeare": (
        "all",
        "iid_sample",
        "k0_sample",
        "niid_user",
        "sample_2018",
        "user_2018",
    ),
}


@functools.cache
def _contents(archive: str) -> dict[str, bytes]:
    with tarfile.open(_FOLDER / archive) as tar:
        return {
            member.name.removeprefix("./"): tar.extractfile(member).read()
            for member in tar
            if member.isfile()
        }


def write_leaf(folder: pathlib.Path, name: str, options: str, steps: tuple[str, ...] = ()) -> None:
    """Writes a folder `data` of LEAF's.

    Args:
      folder: Where to write it.
      name: Name of the data set.
      options: Name of LEAF's options.
      steps: The folders below it that are written; all by default.
    """
    for path, content in _contents("leaf.tar.xz").items():
        set_name, set_options, step, file = path.split("/")
        if (set_name, set_options) == (name, options) and (not steps or step in steps):
            (folder / step).mkdir(parents=True, exist_ok=True)
            (folder / step / file).write_bytes(content)


def vectors(name: str) -> bytes:
    """Returns a file of words' vectors: `vectors.txt` by GloVe or `header.txt` by gensim."""
    return _contents("glove.tar.xz")[name]
