"""`ebbtide demo ensemble`, small: it trains, says what a step takes, and refuses what it cannot do."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from ebbtide.cli import main
from ebbtide.demo import ensemble


def hidden(monkeypatch, package):
    """Let a package be one that is not installed."""
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else found(name))


def test_trains_and_reports(capsys, monkeypatch):
    """A few networks learn, keep no memory from step to step, and their mean prediction is reported beside theirs."""
    pytest.importorskip("sklearn", reason="its digits are the data of the demo")
    hidden(monkeypatch, "torch")  # whose import takes seconds
    code = main(["demo", "ensemble", "--networks", "6", "--steps", "150", "--batch", "16"])
    printed = capsys.readouterr().out
    assert code == 0, printed
    assert "6 networks 64-48-32-10 (5,018 parameters each" in printed
    for line in ("time per step", "collections of garbage", "accuracy of a network, mean, best", "not installed"):
        assert line in printed
    accuracy = float(printed.partition("accuracy of their mean prediction")[2].split()[0])
    assert accuracy > 0.5  # one digit in ten would be right by chance


def test_accuracy_is_that_after_the_steps_asked_for(capsys, monkeypatch):
    """The steps whose bytes are watched train on; what is reported is what as many steps as were asked for learn."""
    pytest.importorskip("sklearn", reason="its digits are the data of the demo")
    hidden(monkeypatch, "torch")
    main(["demo", "ensemble", "--networks", "2", "--steps", "2", "--batch", "4"])
    printed = capsys.readouterr().out
    assert float(printed.partition("accuracy of their mean prediction")[2].split()[0]) < 0.4


def test_networks_are_as_if_alone():
    """Each of several networks has after some steps the parameters that it has alone, with the same rows."""
    pytest.importorskip("sklearn", reason="its digits are the data of the demo")
    data = ensemble.load(0)
    assert abs(len(data.test_labels) - len(data.labels) / 5) <= 1
    many = ensemble.Ensemble(ensemble.Options(networks=3, batch=8), data)
    one = ensemble.Ensemble(ensemble.Options(networks=1, batch=8), data)
    one.parameters = many.parameters[1:2].copy()
    rows = np.random.default_rng(3).integers(0, 100, (4, 3, 8))
    many.random, one.random = _Rows(rows), _Rows(rows[:, 1:2])
    for _ in range(4):
        losses, loss = many.step(), one.step()
        np.testing.assert_allclose(loss, losses[1:2], rtol=1e-5)
    np.testing.assert_allclose(one.parameters[0], many.parameters[1], rtol=1e-4, atol=1e-6)


class _Rows:
    """A generator whose numbers are known."""

    def __init__(self, rows):
        self._rows = iter(rows)

    def integers(self, low, high, shape):
        rows = next(self._rows)
        assert rows.shape == shape
        return rows


def test_what_cannot_be_done_is_said(capsys, monkeypatch):
    """Without scikit-learn the demo says how to get it; a number that is too small is refused."""
    assert main(["demo", "ensemble", "--batch", "0"]) == 2
    assert "--batch 0: at least 1" in capsys.readouterr().err
    assert main(["demo", "ensemble", "--seed", "-1"]) == 2
    assert "--seed -1: at least 0" in capsys.readouterr().err
    hidden(monkeypatch, "sklearn")
    assert main(["demo", "ensemble"]) == 2
    assert "pip install 'ebbtide[examples]'" in capsys.readouterr().err
