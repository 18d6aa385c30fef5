"""Files of words' vectors in the forms in which people have them (`tests/tasks/published`)."""

import codecs
import gzip
import io
import json
import re
import zipfile

import numpy as np
import pytest

import tasks
from tasks.task import DataError
from tests.tasks import published_files

_NAME = "glove.6B.300d.txt"
# What GloVe's 840B file has: blanks in a word, and a word that is there twice.
_BLANKS = (". . .", "at name@domain.com", "dog")


@pytest.fixture(scope="module")
def tweets(tmp_path_factory):
    """LEAF's tweets, some of whose words have vectors."""
    folder = tmp_path_factory.mktemp("tweets")
    published_files.write_leaf(folder, "sent140", "all")
    return folder


def _zip(members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def _with_blanks(plain):
    first = plain.split(b"\n")[0].split(b" ", 1)[1]
    lines = b"".join(word.encode() + b" " + first + b"\n" for word in _BLANKS[:2])
    return lines + plain + b"dog " + b" ".join([b"9"] * 300) + b"\n"


def _sized(plain, size):
    return b"".join(b" ".join(line.split(b" ")[: size + 1]) + b"\n" for line in plain.splitlines())


_GENSIMS = "header.txt"
# Name of the file -> its content, made of GloVe's own.
_FORMS = {
    "plain.txt": lambda plain: plain,
    "plain.txt.gz": gzip.compress,
    "packed.txt": gzip.compress,  # Browsers drop or keep the ending as they like.
    "unpacked.txt.gz": lambda plain: plain,
    "one.zip": lambda plain: _zip({"some/vectors.txt": plain}),
    "mac.zip": lambda plain: _zip({"v.txt": plain, "__MACOSX/._v.txt": b"\0"}),
    "glove.6B.zip": lambda plain: _zip(
        {f"glove.6B.{size}d.txt": _sized(plain, size) for size in (50, 100, 200, 300)}
    ),
    "crlf.txt": lambda plain: plain.replace(b"\n", b"\r\n"),
    "bom.txt": lambda plain: codecs.BOM_UTF8 + plain,
    "bom_crlf.txt.gz": lambda plain: gzip.compress(codecs.BOM_UTF8 + plain.replace(b"\n", b"\r\n")),
    "trailing.txt": lambda plain: plain.replace(b"\n", b" \n"),
    "no_end.txt": lambda plain: plain.removesuffix(b"\n"),
    "blanks.txt": _with_blanks,
    _GENSIMS: lambda plain: published_files.vectors("header.txt"),
    "header_bom.txt": lambda plain: codecs.BOM_UTF8 + published_files.vectors("header.txt"),
    "header.zip": lambda plain: _zip({"v.txt": published_files.vectors("header.txt")}),
}


def _expected(folder):
    """Returns the vectors of the tweets' words in the file's order, between two of zeros."""
    content = json.loads((folder / "all_data" / "all_data.json").read_text())
    tweets = [tweet[4] for own in content["user_data"].values() for tweet in own["x"]]
    words = set(re.findall(r"[\w']+|[.,!?;]", " ".join(tweets).lower()))
    lines = published_files.vectors("vectors.txt").decode().splitlines()
    vectors = [line.split(" ")[1:] for line in lines if line.split(" ")[0] in words]
    assert 10 < len(vectors) < len(lines)
    return np.pad(np.array(vectors, np.float32), [(1, 1), (0, 0)])


def _embedding(folder, **settings):
    task = tasks.load("sent140", data_dir=str(folder), **settings)
    return task, task.keras_model_fn(0).get_layer("embedding").get_weights()[0]


@pytest.fixture(scope="module")
def plain(tweets, tmp_path_factory):
    path = tmp_path_factory.mktemp("plain") / "plain.txt"
    path.write_bytes(published_files.vectors("vectors.txt"))
    return _embedding(tweets, embedding_file=str(path))


def test_vectors_are_gloves(tweets, plain):
    np.testing.assert_array_equal(plain[1], _expected(tweets))


@pytest.mark.parametrize("name", _FORMS)
def test_every_form_gives_the_same_vectors_and_tokens(tweets, plain, tmp_path, name):
    path = tmp_path / name
    path.write_bytes(_FORMS[name](published_files.vectors("vectors.txt")))
    task, vectors = _embedding(tweets, embedding_file=str(path))
    expected, expected_vectors = plain
    # gensim writes numbers below 1e-4 with fewer digits.
    np.testing.assert_allclose(vectors, expected_vectors, rtol=0, atol=1e-6)
    for k in range(len(task.train.client_ids)):
        np.testing.assert_array_equal(task.train.examples(k).x, expected.train.examples(k).x)


@pytest.mark.parametrize("name", [_NAME, f"{_NAME}.gz", f"{_NAME}.zip", "glove.6B.zip"])
@pytest.mark.parametrize("subfolder", ["", "sent140"])
def test_vectors_are_found_in_the_data_folder(tmp_path, plain, name, subfolder):
    published_files.write_leaf(tmp_path, "sent140", "all")
    made = published_files.vectors("vectors.txt")
    (tmp_path / subfolder).mkdir(exist_ok=True)
    (tmp_path / subfolder / name).write_bytes(
        made
        if name == _NAME
        else gzip.compress(made)
        if name.endswith("gz")
        else _zip({_NAME: made})
    )
    np.testing.assert_array_equal(_embedding(tmp_path)[1], plain[1])


@pytest.mark.parametrize(
    ("name", "make", "said"),
    [
        (
            "two.zip",
            lambda plain: _zip({"a.txt": plain, "b.txt": plain}),
            "2 files, but must have one",
        ),
        ("none.zip", lambda plain: _zip({}), "0 files, but must have one"),
        ("size.txt", lambda plain: b"14 200\n" + _sized(plain, 200), "line 2 has 200 numbers"),
        ("utf16.txt", lambda plain: plain.decode().encode("utf-16"), "utf-8"),
        ("long.txt.gz", lambda plain: gzip.compress(bytes(5 << 20)), "more than 1,048,576 bytes"),
        ("cut.txt.gz", lambda plain: gzip.compress(plain)[:-300], "end-of-stream"),
        ("second.txt", lambda plain: plain + b"14 300\n", "line 16 has 1 numbers"),
    ],
)
def test_other_files_are_refused(tweets, tmp_path, name, make, said):
    path = tmp_path / name
    path.write_bytes(make(published_files.vectors("vectors.txt")))
    with pytest.raises(DataError) as error:
        tasks.load("sent140", data_dir=str(tweets), embedding_file=str(path))
    assert said in str(error.value) and name in str(error.value)
