from __future__ import annotations

import builtins
import re
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

import ebbtide
from ebbtide import Budget, grad, profile
from ebbtide.budget import format_bytes
from ebbtide.ledger import KINDS
from ebbtide.optimize import taylor_remainders
from ebbtide.profiling.plot import draw_timeline
from ebbtide.schedules import Costs
from ebbtide.timeline import Timeline

pytest.importorskip("matplotlib", reason="a picture needs matplotlib")


def texts_of(path):
    """Return the texts of an SVG picture whose texts are kept as texts."""
    return re.findall(r">\s*([^<>]*[A-Za-z][^<>]*?)\s*</text>", path.read_text(encoding="utf-8"))


def waves(x):
    """Save an array in each of thirty steps."""
    for _ in range(30):
        x = np.sin(x)
    return np.sum(x)


def profiled(**kwargs):
    """Return the profile of a gradient."""
    with profile() as p:
        grad(waves, **kwargs)(np.linspace(0, 1, 20_000))
    return p


def test_where_a_picture_cannot_go(tmp_path):
    """A directory is no file to write to, nor is a name in none, nor what is no name; nothing is written beside it."""
    test = taylor_remainders(np.exp, 1.0, [1.0], [0.02, 0.01])
    for draw in (profiled().plot, test.plot):
        for path, error, text in (
            (tmp_path, ValueError, "is a directory. Give the name of a file"), ("", ValueError, "'.' is a directory"),
            (tmp_path / "none" / "x.png", ValueError, "none' is not a directory"), (3, TypeError, "and not to 3"),
            (None, TypeError, "and not to None"),
        ):  # fmt: skip
            with pytest.raises(error, match=re.escape(text)):
                draw(path)
    assert list(tmp_path.parent.glob(f"{tmp_path.name}.*")) == []


def test_png(tmp_path):
    """`plot` writes a PNG of at least a thousand points width, with something drawn in it."""
    from matplotlib.image import imread

    path = tmp_path / "memory.png"
    profiled().plot(path)
    picture = imread(path)
    assert path.read_bytes()[:4] == b"\x89PNG"
    assert picture.shape[1] >= 1000
    colors = np.unique((picture[..., :3] * 255).astype(int).reshape(-1, 3), axis=0)
    assert len(colors) > 10


@pytest.mark.parametrize("budget", [None, Budget("3 MB", "1 GiB")])
def test_labels(tmp_path, budget):
    """A picture has its axes with units, both phases, the kinds that were held, and a budget if there is one."""
    import matplotlib as mpl

    path = tmp_path / "memory.svg"
    with mpl.rc_context({"svg.fonttype": "none"}):
        profiled(budget=budget).plot(str(path))
    text = " | ".join(texts_of(path))
    for wanted in ("saved values", "cotangents", "forward", "reverse", "MiB"):
        assert wanted in text
    assert ("budget 2.9 MiB" in text) == (budget is not None)
    assert "snapshots" not in text
    assert ("I/O buffers" in text) == (budget is not None)  # paging has some


def test_phases_are_marked_each_time(tmp_path):
    """Two gradients in a block have two forward and two reverse phases, each marked."""
    import matplotlib as mpl

    path = tmp_path / "memory.svg"
    with profile() as p:
        for _ in range(2):
            grad(waves)(np.linspace(0, 1, 200_000))
    phases = [phase for _, _, phase in p.timeline.points]
    changes = sum(a != b for a, b in pairwise(phases))
    assert changes == 3
    with mpl.rc_context({"svg.fonttype": "none"}):
        p.plot(path)
    assert sum(text == "reverse" for text in texts_of(path)) >= 1


def test_labels_of_phases(tmp_path):
    """Each phase that is wide enough has its name, a narrow one has none."""
    import matplotlib as mpl

    phases = ["forward"] * 40 + ["reverse"] * 30 + ["forward"] + ["reverse"] * 30
    timeline = SimpleNamespace(points=[(float(k), (k << 20, 0, 0, 0), phase) for k, phase in enumerate(phases)])
    with mpl.rc_context({"svg.fonttype": "none"}):
        draw_timeline(timeline, KINDS, None, tmp_path / "phases.svg")
    texts = texts_of(tmp_path / "phases.svg")
    assert [t for t in texts if t in {"forward", "reverse"}] == ["forward", "reverse", "reverse"]
    assert "peak 100.0 MiB" in texts


@pytest.mark.parametrize("points", [0, 1])
def test_picture_of_nothing(tmp_path, points):
    """A timeline without points, or with one, is a picture too."""
    timeline = Timeline(len(KINDS))
    if points:
        timeline.record((1 << 20, 0, 0, 0), "forward")
    draw_timeline(timeline, KINDS, None, tmp_path / "empty.png")
    assert (tmp_path / "empty.png").stat().st_size > 1000


def test_snapshots_are_a_kind_of_their_own(tmp_path):
    """A time loop shows its snapshots."""
    import matplotlib as mpl

    def f(x):
        return np.sum(ebbtide.timeloop(lambda u, _: np.sin(u), x, 30, schedule=ebbtide.schedules.Revolve(5)))

    with profile() as p:
        grad(f)(np.linspace(0, 1, 20_000))
    with mpl.rc_context({"svg.fonttype": "none"}):
        p.plot(tmp_path / "loop.svg")
    assert "snapshots" in " | ".join(texts_of(tmp_path / "loop.svg"))


def test_what_the_function_holds_as_well_is_above_the_line(tmp_path):
    """Where a sweep holds what the function alone takes, too, the picture and the table have all of it, and say so."""
    import matplotlib as mpl

    def step(u, _):
        u[1:-1] += 0.2 * (u[2:] - 2 * u[1:-1] + u[:-2]) - 0.01 * u[1:-1] ** 2
        return u

    u = np.sin(np.linspace(0, np.pi, 100_001))
    budget = Budget(int(9.25 * u.nbytes))
    with profile() as p:
        grad(lambda u: np.sum(ebbtide.timeloop(step, u, 20, costs=Costs()) ** 2), budget=budget)(u)
    most = max(sum(held) for _, held, _ in p.timeline.points)
    assert p.held_bytes <= budget.memory < most == p.timeline.most_held < p.peak_bytes
    with mpl.rc_context({"svg.fonttype": "none"}):
        p.plot(tmp_path / "loop.svg")
    texts = texts_of(tmp_path / "loop.svg")
    assert f"budget {format_bytes(budget.memory)} beyond the function alone" in texts
    assert f"peak {format_bytes(most)}" in texts
    assert f"held          {format_bytes(most):>12}  at most by the library" in str(p)


def test_the_last_points_of_a_thinned_timeline_are_there():
    """The most bytes are in a timeline also where they are the last of all, and fewer than make a point."""
    timeline = Timeline(2)
    for k in range(5000):
        timeline.record([k, 1], "forward")
    timeline.record([9000, 1], "reverse")
    points = timeline.points
    assert points[-1][1:] == ((9000, 1), "reverse")
    assert len(points) <= 4096
    assert timeline.most_held == 9001


def test_matplotlib_that_is_missing(tmp_path, monkeypatch):
    """Without matplotlib the error says how to install it."""
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    p = profiled()
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install 'ebbtide\[plot\]'"):
        p.plot(tmp_path / "memory.png")
