"""Convolutions and pooling by the machine: NumPy's bits, no memory of its own, and refusals of what it cannot read."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from tests.measure import peak_bytes

from ebbtide import grad, jit, nn, optimize, ravel_tree, vmap
from ebbtide.machine import Convolution, Pooling, pieces
from ebbtide.nn.convolution import conv2d
from ebbtide.nn.pooling import max_pool2d

CONVOLUTIONS = {
    "lenet": ((5, 12, 12, 6), (5, 5, 6, 16), 1, 0),
    "one channel": ((3, 28, 28, 1), (5, 5, 1, 6), 1, 0),
    "strides and margins": ((3, 7, 9, 2), (3, 2, 2, 3), (2, 1), ((1, 0), (2, 1))),
    "same": ((2, 5, 5, 3), (3, 3, 3, 4), 2, "same"),
    "gaps between windows": ((2, 9, 8, 2), (2, 2, 2, 3), 3, 0),
    "one window": ((2, 3, 4, 1), (3, 4, 1, 1), 1, 0),
    "margins wider than windows": ((1, 2, 3, 2), (2, 2, 2, 3), 1, 3),
    "more axes in front": ((2, 3, 6, 5, 2), (3, 3, 2, 4), 1, 1),
}


def steps_of(function, *args):
    """The source of a program for the machine."""
    return jit(function, executor="machine").program(*args).source


@pytest.mark.parametrize("piece", [1 << 20, 2000], ids=["whole images", "rows of one image"])
@pytest.mark.parametrize("letter", "fd")
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolutions_have_numpys_bits(monkeypatch, case, letter, piece):
    """Results and both cotangents are those of NumPy to the last bit, for pieces of any size."""
    monkeypatch.setattr(pieces, "PIECE_BYTES", piece)
    images, kernels, stride, padding = CONVOLUTIONS[case]
    random = np.random.default_rng(0)
    x, w = (random.standard_normal(shape).astype(letter) for shape in (images, kernels))

    def results(x, w):
        return conv2d(x, w, None, stride, padding)

    cotangents = grad(lambda x, w: np.sum(np.sin(results(x, w))), argnums=(0, 1))
    machine = jit(lambda x, w: (results(x, w), *cotangents(x, w)), executor="machine")
    found = machine(x, w)
    for one, other in zip(found, (results(x, w), *cotangents(x, w)), strict=True):
        assert one.tobytes() == other.tobytes()
    assert machine.program(x, w).source.count("Convolution(") == 3


@pytest.mark.parametrize("letter", "fd")
@pytest.mark.parametrize(
    ("shape", "window", "strides"),
    [
        ((7, 12, 12, 6), 2, 2), ((2, 9, 10, 5), 3, 2), ((2, 9, 10, 5), (3, 2), (1, 1)), ((2, 3, 6, 5, 2), (2, 1), 1),
        ((2, 4, 900, 3), (2, 2), (1, 3)), ((1, 6, 5, 300), (1, 2), 2),
    ],
    ids=str,
)  # fmt: skip
def test_pooling_has_numpys_bits(shape, window, strides, letter):
    """Of zeros of both signs and of NaN, too, the largest elements, their places and cotangents are NumPy's."""
    x = np.random.default_rng(0).standard_normal(shape).astype(letter)
    x.flat[::7], x.flat[::11], x.flat[5:9] = 0, -0.0, np.nan

    def pooled(x):
        return max_pool2d(x, window, strides)

    cotangent = grad(lambda x: np.nansum(np.sin(pooled(x))))
    assert jit(pooled, executor="machine")(x).tobytes() == pooled(x).tobytes()
    assert jit(cotangent, executor="machine")(x).tobytes() == cotangent(x).tobytes()


def test_images_that_lie_otherwise_are_numpys():
    """Images with gaps, and those whose channels come first, are read by NumPy, with its result."""
    random = np.random.default_rng(0)
    w = random.standard_normal((3, 3, 2, 4))
    turned = random.standard_normal((3, 2, 8, 8)).transpose(0, 2, 3, 1)
    gaps = random.standard_normal((3, 8, 8, 5))[..., :2]
    for x in (turned, gaps):
        assert "Convolution(" not in steps_of(conv2d, x, w)
        assert np.array_equal(jit(conv2d, executor="machine")(x, w), conv2d(x, w))
        assert np.array_equal(jit(max_pool2d, executor="machine")(x), max_pool2d(x))


def test_kernels_and_images_from_around_the_function():
    """Operands that are plain arrays are read as others are."""
    random = np.random.default_rng(0)
    x, w = random.standard_normal((2, 6, 6, 2)), random.standard_normal((3, 3, 2, 4))
    assert "Convolution(" in steps_of(lambda x: conv2d(x, w), x)
    for executor in ("machine", "reference"):
        assert np.array_equal(jit(lambda x: conv2d(x, w), executor=executor)(x), conv2d(x, w))
        assert np.array_equal(jit(lambda w: conv2d(x, w), executor=executor)(w), conv2d(x, w))
        assert np.array_equal(jit(lambda y: y + max_pool2d(x), executor=executor)(1.0), 1.0 + max_pool2d(x))


def test_floating_point_errors_are_heard_of():
    """A product that overflows in a piece is one that np.errstate is asked about."""
    x, w = np.full((2, 4, 4, 1), 1e300), np.full((2, 2, 1, 1), 1e300)
    with np.errstate(over="raise"), pytest.raises(FloatingPointError, match="overflow encountered in matmul"):
        jit(conv2d, executor="machine")(x, w)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Pooling("largest", (1, 4, 4, 2), (2, 2), (2, 2), (2, 2), ((0, 0, "f", (128, 32, 4, 4)),
                         (1, 0, "f", (32, 16, 8, 4)))), "gaps"),
        (lambda: Pooling("places", (1, 4, 4, 1), (2, 2), (2, 2), (2, 2), ((0, 0, "f", (64, 16, 4, 4)),
                         (1, 0, "f", (16, 8, 4, 4)))), "No places"),
        (lambda: Convolution("results", (1, 4, 4, 1), (2, 2, 1, 1), (1, 1), (0, 0), (3, 3),
                             tuple([(0, 0, "l", (8, 8, 8, 8))] * 4)), "No convolution"),
        (lambda: Convolution("results", (0, 4, 4, 1), (2, 2, 1, 1), (1, 1), (0, 0), (3, 3),
                             tuple([(0, 0, "f", (4, 4, 4, 4))] * 4)), "No windows"),
    ],
    ids=["gaps", "places of floats", "integers", "no images"],
)  # fmt: skip
def test_steps_that_cannot_be_made(make, message):
    """What has no loop, or lies with gaps, is refused when the step is made."""
    with pytest.raises(ValueError, match=message):
        make()


SHAPES = (((3, 3, 1, 2), (2,)), ((3, 3, 2, 4), (4,)), ((16, 10), (10,)))


def trainer(nets, executor="machine"):
    """A step of training some small nets with convolutions, written for one, and what it starts from."""
    random = np.random.default_rng(0)
    flat, unravel = ravel_tree([tuple([random.standard_normal(s).astype("f") * 0.3 for s in pair]) for pair in SHAPES])
    optimizer = optimize.adam(1e-3)

    def loss(flat, x, labels):
        first, second, last = unravel(flat)
        x = max_pool2d(nn.relu(conv2d(x, *first)))
        x = max_pool2d(nn.relu(conv2d(x, *second)))
        return nn.cross_entropy(nn.dense(np.reshape(x, (len(x), -1)), *last), labels)

    def step(flat, state, x, labels):
        return optimizer.step(flat, grad(loss)(flat, x, labels), state)

    many = np.stack([flat + k * np.float32(0.01) for k in range(nets)])
    step = jit(vmap(step), donate_argnums=(0, 1), executor=executor)
    return step, many, vmap(optimizer.init)(many)


def batches(nets):
    """Images and labels."""
    random = np.random.default_rng(1)
    return random.standard_normal((nets, 6, 14, 14, 1)).astype("f"), random.integers(0, 10, (nets, 6))


def test_a_step_of_nets_with_convolutions_is_one_run_of_the_machine():
    """No equation of a net is left to NumPy, the bits are the reference's, and nothing is allocated."""
    x, labels = batches(3)
    step, many, state = trainer(3)
    source = step.program(many, state, x, labels).source
    assert "run_members(stretch" in source
    plain, other, its_state = trainer(3, "reference")
    for _ in range(2):
        other, its_state = plain(other, its_state, x, labels)
        many, state = step(many, state, x, labels)
    assert many.tobytes() == other.tobytes()
    # Less than the results of a layer for one net: what NumPy itself would allocate.
    assert peak_bytes(lambda: step(many, state, x, labels)) < 6 * 12 * 12 * 2 * 4


def test_threads_of_users_that_train_nets_of_their_own():
    """Five threads that call one step at the same time get the bits of nets side by side: they share no memory."""
    step, many, state = trainer(5)
    x, labels = batches(5)
    alone = trainer(1)[0]
    together, results = threading.Barrier(5), {}

    def train(number):
        mine = many[number : number + 1].copy()
        its_state = vmap(optimize.adam(1e-3).init)(mine)
        part = slice(number, number + 1)
        together.wait()
        for _ in range(6):
            mine, its_state = alone(mine, its_state, x[part], labels[part])
        results[number] = mine

    threads = [threading.Thread(target=train, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for _ in range(6):
        many, state = step(many, state, x, labels)
    assert np.concatenate([results[number] for number in range(5)]).tobytes() == many.tobytes()
