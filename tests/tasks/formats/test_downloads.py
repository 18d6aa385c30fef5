import fcntl
import hashlib
import os

import numpy as np
import pytest

from tasks.formats import downloads
from tasks.task import DataError
from tests.tasks.server import Server

_CONTENT = np.random.default_rng(0).bytes(3_000_000)
_ADVICE = "get it elsewhere and set --data_dir"


@pytest.fixture
def server():
    with Server() as one:
        one.files["set.lzma"] = _CONTENT
        yield one


def _fetch(server, folder, name="set.lzma", **settings):
    downloads.fetch(server.url + name, str(folder / "cache" / name), _ADVICE, **settings)


def _whole(folder):
    assert os.listdir(folder / "cache") == ["set.lzma"]
    return (folder / "cache" / "set.lzma").read_bytes()


def _refused(server, folder, *named, **settings):
    with pytest.raises(DataError) as error:
        _fetch(server, folder, **settings)
    text = str(error.value)
    assert "\n" not in text and all(part in text for part in ("--data_dir", *named)), text
    assert not (folder / "cache" / "set.lzma").exists()


def test_a_download_shows_a_bar_and_leaves_the_file_alone(tmp_path, server, capfd):
    _fetch(server, tmp_path, sha256=hashlib.sha256(_CONTENT).hexdigest())
    assert _whole(tmp_path) == _CONTENT
    said = capfd.readouterr().err
    assert "Downloading set.lzma" in said and "100%" in said and "3.00M" in said
    _fetch(server, tmp_path)
    assert len(server.asked) == 1


@pytest.mark.parametrize("cut", [1, 1_234_567, 2_999_999])
def test_it_goes_on_where_it_was_cut_off(tmp_path, server, cut, capfd):
    server.cut_after = cut
    _refused(server, tmp_path, f"{cut:,} of 3,000,000 bytes", "same command")
    server.cut_after = None
    capfd.readouterr()
    _fetch(server, tmp_path)
    assert _whole(tmp_path) == _CONTENT
    assert server.asked[1][1] == (f"bytes={cut - 1}-" if cut > 1 else None)
    if cut == 2_999_999:
        assert "0%|" not in capfd.readouterr().err.replace("100%|", "")


def test_one_that_was_killed_before_its_end_was_noticed_is_finished(tmp_path, server):
    server.cut_after = 10
    _refused(server, tmp_path)
    server.cut_after = None
    (tmp_path / "cache" / "set.lzma.part").write_bytes(_CONTENT)
    _fetch(server, tmp_path)
    assert _whole(tmp_path) == _CONTENT and server.asked[1][1] == "bytes=2999999-"


def test_another_file_of_that_name_begins_anew(tmp_path, server):
    server.cut_after = 1_000_000
    _refused(server, tmp_path)
    server.cut_after = None
    server.files["set.lzma"] = _CONTENT[::-1]
    _fetch(server, tmp_path)
    assert _whole(tmp_path) == _CONTENT[::-1]


def test_what_is_left_of_it_without_a_name_begins_anew(tmp_path, server):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "set.lzma.part").write_bytes(b"x" * 1000)
    _fetch(server, tmp_path)
    assert _whole(tmp_path) == _CONTENT and server.asked == [("set.lzma", None)]


def test_content_that_is_not_what_was_announced_is_thrown_away(tmp_path, server):
    server.md5_of = b"another"
    _refused(server, tmp_path, "md5", hashlib.md5(b"another").hexdigest())
    assert not (tmp_path / "cache" / "set.lzma.part").exists()
    server.says_md5 = False
    _refused(server, tmp_path, "sha256", "0123", sha256="0123")
    assert not (tmp_path / "cache" / "set.lzma.part").exists()
    _fetch(server, tmp_path)
    assert _whole(tmp_path) == _CONTENT


def test_damage_in_what_was_kept_is_noticed(tmp_path, server):
    server.cut_after = 1_000_000
    _refused(server, tmp_path)
    server.cut_after = None
    (tmp_path / "cache" / "set.lzma.part").write_bytes(b"x" * 1_000_000)
    _refused(server, tmp_path, "md5")
    _fetch(server, tmp_path)
    assert _whole(tmp_path) == _CONTENT


def test_a_file_with_another_digest_is_downloaded_again(tmp_path, server):
    digest = hashlib.sha256(_CONTENT).hexdigest()
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "set.lzma").write_bytes(_CONTENT[:-5])
    _fetch(server, tmp_path, sha256=digest)
    assert _whole(tmp_path) == _CONTENT
    _fetch(server, tmp_path, sha256=digest)
    assert len(server.asked) == 1


def test_two_do_not_download_one_file(tmp_path, server):
    (tmp_path / "cache").mkdir()
    with open(tmp_path / "cache" / "set.lzma.part", "ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="another process is downloading"):
            _fetch(server, tmp_path)
    assert not server.asked


def test_what_cannot_be_had_is_one_line(tmp_path, server):
    with pytest.raises(DataError, match=r"none.lzma cannot be downloaded.*Not Found.*--data_dir"):
        _fetch(server, tmp_path, "none.lzma")
    with pytest.raises(DataError, match=r"set.lzma cannot be downloaded.*refused.*--data_dir"):
        downloads.fetch("http://127.0.0.1:1/set.lzma", str(tmp_path / "set.lzma"), _ADVICE)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataError, match="cannot be downloaded"):
        downloads.fetch(server.url + "set.lzma", str(tmp_path / "file" / "set.lzma"), _ADVICE)
