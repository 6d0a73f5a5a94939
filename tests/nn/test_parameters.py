"""Parameters in a file: written whole, read with the names and types that are asked for."""

from __future__ import annotations

import numpy as np
import pytest

from ebbtide import grad
from ebbtide.errors import TraceError
from ebbtide.nn import load_parameters, save_parameters

TREE = {"w": [np.eye(2, dtype=np.float32), np.arange(3)], "b/c": 0.5}


def test_round_trip(tmp_path):
    """What is saved is loaded, in any container of the form; NumPy reads the file, too."""
    path = tmp_path / "net.params"  # the name is taken as it is
    save_parameters(path, TREE)
    found = load_parameters(path, like={"w": [np.zeros((2, 2), np.float32), np.zeros(3, int)], "b/c": 0.0})
    np.testing.assert_array_equal(found["w"][0], TREE["w"][0])
    np.testing.assert_array_equal(found["w"][1], TREE["w"][1])
    assert found["b/c"] == 0.5
    assert found["w"][0].dtype == np.float32
    with np.load(path) as archive:
        assert set(archive.files) == {"['w'][0]", "['w'][1]", "['b/c']"}
    save_parameters(path, np.ones(2))
    np.testing.assert_array_equal(load_parameters(path, like=np.zeros(2)), np.ones(2))
    assert [p.name for p in tmp_path.iterdir()] == ["net.params"]


def test_differences_are_named(tmp_path):
    """All differences between file and container are said at once."""
    path = tmp_path / "net.npz"
    save_parameters(path, TREE)
    with pytest.raises(ValueError, match="does not have these parameters") as caught:
        load_parameters(path, like={"w": [np.eye(2), np.arange(4)], "d": np.zeros(1)})
    for text in ("['b/c'] is in the file only", "['w'][0] is of type float32[2, 2] in the file, and of type float64",
                 "['w'][1] is of type", "['d'], of type float64[1], is not in the file"):  # fmt: skip
        assert text in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"nothing of the kind", b"PK\x03\x04 cut short"])
def test_damaged_files_are_refused(tmp_path, content):
    """A file that is no archive, or a part of one, is an error that names it."""
    path = tmp_path / "net.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"net\.npz has no parameters"):
        load_parameters(path, like=TREE)
    np.save(tmp_path / "one.npy", np.ones(2))
    with pytest.raises(ValueError, match="it is one array"):
        load_parameters(tmp_path / "one.npy", like=TREE)


def test_a_failure_keeps_the_old_file(tmp_path):
    """Where a container cannot be saved, the file that was there stays, and nothing else is left."""
    path = tmp_path / "net.npz"
    save_parameters(path, TREE)
    before = path.read_bytes()
    with pytest.raises(TypeError, match=r"parameter \['w'\]\[0\] is of type <U1"):
        save_parameters(path, {"w": [np.array("a")]})
    with pytest.raises(TypeError, match="is traced"):
        grad(lambda x: save_parameters(path, x))(np.ones(2))
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_a_saved_file_is_like_any_new_one(tmp_path):
    """It has the permissions of a new file, not those of a temporary one, and a link to it stays a link."""
    other, path, link = tmp_path / "other", tmp_path / "net.npz", tmp_path / "link.npz"
    other.touch()
    link.symlink_to(path)
    save_parameters(link, np.ones(2))
    assert link.is_symlink()
    assert path.stat().st_mode == other.stat().st_mode
    np.testing.assert_array_equal(load_parameters(path, np.zeros(2)), np.ones(2))
    assert sorted(tmp_path.iterdir()) == sorted([other, path, link])


def test_each_changed_byte_is_harmless_or_refused(tmp_path):
    """With any byte changed the file has the same parameters, or is refused."""
    path = tmp_path / "net.npz"
    save_parameters(path, np.arange(5.0))
    content = path.read_bytes()
    for place in range(len(content)):
        for change in (0x5A, 0xFF):
            path.write_bytes(content[:place] + bytes([content[place] ^ change]) + content[place + 1 :])
            try:
                found = load_parameters(path, np.zeros(5))
            except (ValueError, OSError):
                continue
            np.testing.assert_array_equal(found, np.arange(5.0))


def test_masks_are_not_lost(tmp_path):
    """A masked array is refused, as its mask would not be in the file."""
    with pytest.raises(TraceError, match="mask would be lost"):
        save_parameters(tmp_path / "net.npz", {"w": np.ma.masked_array([1.0, 2.0], [True, False])})
