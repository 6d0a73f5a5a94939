"""The command `ebbtide`: a bad input is one clear line and exit code 2, a good run reports and returns 0."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ebbtide import cli
from ebbtide.demo import burgers, burgers_report
from ebbtide.errors import BudgetError

NODES = 11
Change = Callable[[NDArray[np.float64]], NDArray[np.generic]]


def field() -> NDArray[np.float64]:
    """Return a good initial velocity."""
    return burgers.guess(burgers.Problem(NODES, 1))


def poke(index: tuple[int, int, int], value: float) -> Change:
    """Return a change of one value of a field."""

    def changed(values: NDArray[np.float64]) -> NDArray[np.generic]:
        values[index] = value
        return values

    return changed


def run(folder: Path, *options: str) -> int:
    """Run the demo on a small problem."""
    return cli.main(
        [
            "demo",
            "burgers",
            "--nodes",
            str(NODES),
            "--steps",
            "6",
            "--plot",
            str(folder / "memory.png"),
            *options,
        ]
    )


def only_error(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one line on stderr."""
    lines = capsys.readouterr().err.splitlines()
    assert [line[:7] for line in lines] == ["error: "], lines
    return lines[0]


BAD_FIELDS: list[tuple[str, Change, list[str]]] = [
    ("shape", lambda w: w[:, :-1], ["(2, 10, 11)", "(2, 11, 11)"]),
    ("axes", lambda w: w.transpose(1, 2, 0), ["(11, 11, 2)", "(2, 11, 11)"]),
    ("integers", lambda w: w.astype(np.int64), ["int64", "float64"]),
    ("complex", lambda w: w.astype(np.complex128), ["complex128"]),
    ("nan", poke((1, 4, 5), np.nan), ["1 values", "nan", "(1, 4, 5)"]),
    ("infinite", poke((0, 2, 3), -np.inf), ["-inf", "(0, 2, 3)"]),
    ("boundary", poke((0, 0, 3), 0.5), ["0.5", "(0, 0, 3)", "boundary"]),
    (
        "unstable",
        lambda w: w * 3.0,
        ["unstable", "largest speed 3 ", "= 3 ", "up to 2", "largest speed of 2 "],
    ),
]


@pytest.mark.parametrize(("change", "words"), [case[1:] for case in BAD_FIELDS], ids=[case[0] for case in BAD_FIELDS])
def test_a_bad_initial_field_is_refused(
    change: Change, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message names the offending number, the bound, and what to do."""
    path = tmp_path / "field.npy"
    np.save(path, change(field()))
    assert run(tmp_path, "--initial", str(path)) == cli.EXIT_ERROR
    message = only_error(capsys)
    assert all(word in message for word in words), message


def test_a_bad_initial_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Missing, a directory, text, .npz, pickled objects, cut short: each is an error that says so."""
    text, archive, short, objects = (tmp_path / name for name in ("a.txt", "b.npz", "c.npy", "d.npy"))
    text.write_text("0.0 0.0")
    np.savez(archive, field=field())
    np.save(short, field())
    short.write_bytes(short.read_bytes()[:200])
    np.save(objects, np.array([{}], dtype=object), allow_pickle=True)
    cases = (
        (tmp_path / "none.npy", "does not exist"),
        (tmp_path, "is not a file"),
        (text, "not a .npy file"),
        (archive, "not a .npy file"),
        (short, "cannot be read"),
        (objects, "cannot be read"),
    )
    for path, words in cases:
        assert run(tmp_path, "--initial", str(path)) == cli.EXIT_ERROR
        message = only_error(capsys)
        assert words in message
        assert path.name in message


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--nodes", "4"], "at least 5 nodes"),
        (["--nodes", "-1"], "at least 5 nodes"),
        (["--steps", "0"], "at least 1 step"),
        (["--memory", "much"], "'much'"),
        (["--disk", "1 parsec"], "'1 parsec'"),
        (["--plot", "nowhere/memory.png"], "'nowhere'"),
        (["--plot", "memory.txt"], "memory.txt"),
        (["--plot", "."], "--plot: The picture cannot be written: '.' is a directory"),
        (["--nodes", "10000000"], "do not fit into the memory"),
        (["--nodes", "9" * 400], "do not fit into the memory"),
    ],
)
def test_a_bad_option_is_refused(
    options: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Numbers, sizes and places that cannot be used are refused before any work."""
    assert run(tmp_path, *options) == cli.EXIT_ERROR
    assert words in only_error(capsys)


def test_an_accepted_field_keeps_its_values(tmp_path: Path) -> None:
    """Rounding on the boundary is cleared; float32 and either byte order or memory order are read."""
    problem = burgers.Problem(NODES, 1)
    original = field()
    rounded = original.copy()
    rounded[0, -1] = 1.2e-16
    for saved, tolerance in (
        (rounded, 0.0),
        (original.astype(np.float32), 1e-7),
        (original.astype(">f8"), 0.0),
        (np.asfortranarray(original), 0.0),
    ):
        path = tmp_path / "field.npy"
        np.save(path, saved)
        loaded = burgers.load_initial(path, problem)
        assert loaded.dtype == np.float64
        assert loaded.flags.c_contiguous
        assert loaded.flags.writeable
        np.testing.assert_allclose(loaded, original, rtol=0.0, atol=tolerance)


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    """Both print and leave with 0; a command is required."""
    for options, code, words in (
        (["--version"], 0, "ebbtide "),
        (["demo", "burgers", "-h"], 0, "64MiB"),
        ([], 2, ""),
    ):
        with pytest.raises(SystemExit) as left:
            cli.main(options)
        assert left.value.code == code
        assert words in capsys.readouterr().out


def test_the_package_is_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`python -m ebbtide` does what `ebbtide` does, with the same exit code; to import its module runs nothing."""
    for options, code, words in ((["--version"], 0, "ebbtide "), (["clean"], 2, "ebbtide clean: error: ")):
        monkeypatch.setattr(sys, "argv", ["ebbtide", *options])
        with pytest.raises(SystemExit) as left:
            runpy.run_module("ebbtide", run_name="__main__")
        assert left.value.code == code
        assert words in "".join(capsys.readouterr())
    assert runpy.run_module("ebbtide.__main__")["main"] is cli.main


def test_too_small_a_budget_names_the_least(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A budget of one byte is refused with the least number of bytes, at which the demo then runs."""
    assert run(tmp_path, "--memory", "1") == cli.EXIT_ERROR
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, errors
    assert any(character.isdigit() for character in errors[0]), errors


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("It takes 1234567 bytes.", "It takes 1234567 bytes."),
        ("It takes 1,234,567 bytes.", "It takes 1,234,567 bytes."),
        ("It does not fit.", "It does not fit. The least that would do is 1234567 bytes: --memory 1234567."),
    ],
    ids=["named", "named with commas", "not named"],
)
def test_the_least_is_said_once(
    message: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error of a budget names the least that would do, and does not repeat it if the message has it already."""

    def refuse(_: burgers_report.Options) -> int:
        raise BudgetError(message, 1234567)

    monkeypatch.setattr(burgers_report, "run", refuse)
    assert run(tmp_path) == cli.EXIT_ERROR
    assert only_error(capsys) == f"error: {said}"


def test_the_error_of_a_file_is_not_one_of_the_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the system that names a file comes through as it is: the output is not to blame."""
    picture = tmp_path / "memory.png"

    def refuse(_: burgers_report.Options) -> int:
        raise PermissionError(13, "Permission denied", str(picture))

    monkeypatch.setattr(burgers_report, "run", refuse)
    with pytest.raises(PermissionError, match=r"Permission denied: .*memory\.png"):
        run(tmp_path)


def test_a_good_run_reports_and_returns_zero(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sizes, plan, measurement, Taylor rates and verdicts are printed, and the picture is written."""
    path = tmp_path / "field.npy"
    np.save(path, field())
    assert run(tmp_path, "--memory", "8MiB", "--initial", str(path)) == 0
    out = capsys.readouterr().out
    for words in ("one state", "Plan", "predicted", "measured", "dJ/dnu", "order 2", "Verdict"):
        assert words in out, out
    assert "FAIL" not in out
    assert (tmp_path / "memory.png").stat().st_size > 1000
