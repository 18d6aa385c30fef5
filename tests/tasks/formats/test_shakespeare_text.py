import collections
import gzip

import h5py
import pytest

from tasks.formats import shakespeare_text
from tasks.task import DataError

_HEADER = """This is the 100th Etext file presented by Project Gutenberg, and
is presented in cooperation with World Library, Inc.


1609

THE SONNETS

by William Shakespeare



                     1
  From fairest creatures. We desire increase,
  That thereby. Beauty's rose might never die,

"""
_NOTICE = """<<THIS ELECTRONIC VERSION OF THE COMPLETE WORKS OF WILLIAM
SHAKESPEARE IS COPYRIGHT 1990-1993 BY WORLD LIBRARY, INC., AND IS>>
"""
_OTHELLO = (
    """1605

THE TRAGEDY OF OTHELLO, MOOR OF VENICE


by William Shakespeare



ACT I. SCENE I.
Venice. A street.

Enter Roderigo and Iago.

  RODERIGO. Tush, never tell me! I take it much unkindly
    That thou, Iago, who hast had my purse
    As if the strings were thine, shouldst know of this.\x20\x20
  IAGO. 'Sblood, but you will not hear me.

"""
    + _NOTICE
    + """
    If ever I did dream of such a matter,
    Abhor me.
  RODERIGO. Thou told'st me thou didst hold him in thy hate.
  Iago. Despise me, if I do not.                      Exit.
  IAGO. O, sir, content you.
  FIRST OFFICER. Ay.
  MUTE.\x20
  GHOST OF A. Boo.
THE END

"""
)
_ERRORS = """1593

THE COMEDY OF ERRORS

by William Shakespeare


ACT I. SCENE 1

AEGEON. Proceed, Solinus, to procure my fall,
And by the doom of death end woes and all.
DUKE. Merchant of Syracuse, plead no more;
<<THIS ELECTRONIC VERSION
I am not partial to infringe our laws.
ACT II. SCENE 1
Not spoken
AEGEON. Yet this my comfort.

"""
_COMPLAINT = """1609

A LOVER'S COMPLAINT

by William Shakespeare



  From off. A hill whose concave womb reworded
  A plaintful. Story from a sist'ring vale,
"""
_SMALL = _HEADER + _OTHELLO + _ERRORS + _COMPLAINT


def test_speeches_are_found():
    found = {(role.play, role.name): role.speeches for role in shakespeare_text.parse(_SMALL)}
    othello, errors = "THE TRAGEDY OF OTHELLO, MOOR OF VENICE", "THE COMEDY OF ERRORS"
    assert found == {
        (othello, "RODERIGO"): (
            (
                "Tush, never tell me! I take it much unkindly",
                "That thou, Iago, who hast had my purse",
                "As if the strings were thine, shouldst know of this.",
            ),
            ("Thou told'st me thou didst hold him in thy hate.",),
        ),
        (othello, "IAGO"): (
            (
                "'Sblood, but you will not hear me.",
                "If ever I did dream of such a matter,",
                "Abhor me.",
            ),
            ("O, sir, content you.",),
        ),
        (othello, "Iago"): (("Despise me, if I do not.                      Exit.",),),
        (othello, "FIRST OFFICER"): (("Ay.",),),
        (othello, "GHOST OF A"): (("Boo.",),),
        (errors, "AEGEON"): (
            ("Proceed, Solinus, to procure my fall,", "And by the doom of death end woes and all."),
            # In this play nothing tells a speech from what follows it, as in LEAF's reading.
            ("Yet this my comfort.", "", "1609", "", "A LOVER'S COMPLAINT", ""),
        ),
        (errors, "DUKE"): (("Merchant of Syracuse, plead no more;",),),
    }


def _clients(rule):
    return {role.client_id: role for role in shakespeare_text.roles(_SMALL, rule)}


def test_rules_differ_as_they_should():
    othello = "THE_TRAGEDY_OF_OTHELLO_MOOR_OF_VENICE"
    assert set(_clients("mcmahan")) == {
        f"{othello.replace('OTHELLO_', 'OTHELLO__')}_RODERIGO",
        f"{othello.replace('OTHELLO_', 'OTHELLO__')}_IAGO",
        "THE_COMEDY_OF_ERRORS_AEGEON",
    }
    assert set(_clients("leaf")) == set(_clients("mcmahan"))
    leaf_iago = _clients("leaf")["THE_TRAGEDY_OF_OTHELLO__MOOR_OF_VENICE_IAGO"]
    assert len(leaf_iago.speeches) == 3
    # More than 80 characters, however few the speeches, and no special case for the comedy.
    assert set(_clients("tff")) == {
        "MUCH_ADO_ABOUT_NOTHING_RODERIGO",
        "MUCH_ADO_ABOUT_NOTHING_IAGO",
    }


def _examples_as_tff(text):
    return {
        role.client_id: ["\n".join(lines) for lines in role.speeches]
        for role in shakespeare_text.roles(text, "tff")
    }


def test_tff_cuts_after_the_first_line_of_each_speech():
    assert _examples_as_tff(_SMALL)["MUCH_ADO_ABOUT_NOTHING_IAGO"] == [
        "'Sblood, but you will not hear me.",
        "If ever I did dream of such a matter,\nAbhor me.\nDespise me, if I do not."
        "                      Exit.",
        "O, sir, content you.",
        "",
    ]
    assert _examples_as_tff(_SMALL)["MUCH_ADO_ABOUT_NOTHING_RODERIGO"][2] == ""


def test_tff_wants_more_than_80_characters_and_no_number_of_speeches():
    text = ""
    for play, length in (("KING JOHN", 80), ("CYMBELINE", 79)):  # And a blank after the line.
        text += f"{play}\n\nby William Shakespeare\n\n  LEAR. {'x' * length}\n"
    assert _examples_as_tff(text) == {
        "THE_FIRST_PART_OF_KING_HENRY_THE_FOURTH_LEAR": ["x" * 80, ""]
    }


def test_tff_reads_the_comedy_like_any_play_and_ends_in_titus():
    long = "y" * 81
    text = f"THE COMEDY OF ERRORS\n\nby William Shakespeare\n\nDUKE. {long}\n  OF EPHESUS. {long}\n"
    text += "THE TRAGEDY OF TITUS ANDRONICUS\n\nby William Shakespeare\n\n"
    text += f"  TITUS. {long}\n  TITUS. Patient yourself, madam, and pardon me.\n  AARON. {long}\n"
    assert _examples_as_tff(text) == {
        "ALL_S_WELL_THAT_ENDS_WELL_OF_EPHESUS": [long, ""],
        "THE_TAMING_OF_THE_SHREW_TITUS": [
            long,
            "Patient yourself, madam, and pardon me.",
            "",
        ],
    }


def test_most_clients_have_exactly_tffs_examples(data_dir):
    folder = data_dir / "shakespeare_tff"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    theirs = collections.defaultdict(list)
    for split in ("train", "test"):
        with h5py.File(folder / f"shakespeare_{split}.h5") as file:
            for client, group in file["examples"].items():
                theirs[client] += [snippet.decode() for snippet in group["snippets"][()]]
    ours = _examples_as_tff(shakespeare_text.read(shakespeare_text.find(str(data_dir))))
    assert set(ours) - set(theirs) == {"MUCH_ADO_ABOUT_NOTHING_HERALD"}
    same = [client for client in ours if sorted(ours[client]) == sorted(theirs[client])]
    assert (len(ours), len(same)) == (707, 663)


def test_leaf_wants_more_than_80_characters():
    lines = tuple("x" * 26 for _ in range(3))  # With a blank after each, 81 characters.
    text = "A PLAY\n\nby William Shakespeare\n\n"
    for name, words in (("ENOUGH", lines), ("SHORT", (*lines[:2], "x" * 25))):
        text += f"  {name}. {words[0]}\n    {words[1]}\n    {words[2]}\n"
    assert [r.name for r in shakespeare_text.roles(text, "leaf")] == ["ENOUGH"]
    assert len(shakespeare_text.roles(text, "mcmahan")) == 2


def test_blanks_and_line_ends_of_the_running_text_are_leafs():
    role = shakespeare_text.Role("P", "N", (("a  b   c", "d"), ("e",)))
    assert role.running_text() == "a b c d e "


def test_the_published_counts_are_reached_on_the_real_text(data_dir, capsys):
    assert shakespeare_text.main([f"--data_dir={data_dir}"]) == 0
    rows = [line.replace(",", "").split() for line in capsys.readouterr().out.splitlines()[1:]]
    counts = {row[0]: [int(n) for n in row[1:]] for row in rows}
    published, reached = zip(*((row[0], row[1]) for row in counts.values()), strict=True)
    assert dict(zip(counts, published, strict=True)) == {"tff": 715, "leaf": 1129, "mcmahan": 1146}
    assert dict(zip(counts, reached, strict=True)) == {"tff": 707, "leaf": 1129, "mcmahan": 1146}
    assert abs(counts["leaf"][4] - 4_226_158) <= 2
    assert counts["tff"][2] == 18_611


def test_tffs_groups_are_plays_of_the_text(data_dir):
    text = shakespeare_text.read(shakespeare_text.find(str(data_dir)))
    plays = {role.play for role in shakespeare_text.parse(text)}
    grouped = [play for group in shakespeare_text.TFF_GROUPS.values() for play in group]
    assert len(grouped) == len(set(grouped)) == 24 and set(grouped) <= plays
    ids = {role.client_id for role in shakespeare_text.roles(text, "tff")}
    # Ids of TFF's file that are quoted in public code.
    assert ids >= {
        "ALL_S_WELL_THAT_ENDS_WELL_CELIA",
        "MUCH_ADO_ABOUT_NOTHING_OTHELLO",
        "PERICLES__PRINCE_OF_TYRE_MARSHAL",
        "THE_FIRST_PART_OF_KING_HENRY_THE_FOURTH_LORD_BARDOLPH",
        "THE_TAMING_OF_THE_SHREW_CERES",
        "THE_TRAGEDY_OF_KING_LEAR_MRS",
    }


@pytest.mark.parametrize("damage", ["cut", "text", "edition", "missing"])
def test_other_files_are_refused_in_one_line(tmp_path, capsys, damage):
    path = tmp_path / "t8.shakespeare.txt.gz"
    packed = gzip.compress(_SMALL.encode() * 10)
    if damage != "missing":
        path.write_bytes({"cut": packed[:-20], "text": b"<html>", "edition": packed}[damage])
    assert shakespeare_text.main([f"--data_dir={tmp_path}"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and str(path) in error and "--data_dir" in error
    assert "2 of 36 plays" in error or damage != "edition"
    if damage != "missing":
        with pytest.raises(DataError):
            shakespeare_text.read(str(path))
