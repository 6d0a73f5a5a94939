"""Functions of models: values by other means, what they save, programs and batches, and what they refuse."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import signal, special

from ebbtide import TraceError, grad, jit, nn, saved_values, value_and_grad, vjp, vmap
from ebbtide.testing import check_grads

RANDOM = np.random.default_rng(11)
X = RANDOM.standard_normal((4, 9, 8, 3))
KERNELS = RANDOM.standard_normal((3, 2, 3, 5))


def entries(f, *args):
    """Return what is saved: (operation, shape, dtype) of each, sorted."""
    found = saved_values(f, *args, argnums=range(len(args)))
    return sorted((entry.operation, tuple(entry.shape), str(entry.dtype)) for entry in found.entries)


@pytest.mark.parametrize("stride", [1, 2, (1, 3)])
@pytest.mark.parametrize("padding", [0, (1, 2), ((0, 1), (2, 0)), "same", "valid"])
def test_convolution_is_scipys(stride, padding):
    """A convolution is the sum over channels of SciPy's correlations, of the padded images, at each stride."""
    found = nn.conv2d(X, KERNELS, stride=stride, padding=padding)
    strides = stride if isinstance(stride, tuple) else (stride, stride)
    if padding == "same":
        wanted = [-(-n // s) for n, s in zip(X.shape[1:3], strides, strict=True)]
        assert list(found.shape[1:3]) == wanted
        whole = [max(0, (m - 1) * s + k - n) for m, s, k, n in zip(wanted, strides, (3, 2), X.shape[1:3], strict=True)]
        padding = [(p // 2, p - p // 2) for p in whole]
    if padding == "valid":
        padding = 0
    wide = np.pad(X, [(0, 0), *np.broadcast_to(np.reshape(padding, (-1, 1)) if np.ndim(padding) == 1 else padding,
                                               (2, 2)), (0, 0)])  # fmt: skip
    for n in range(len(X)):
        for o in range(5):
            planes = [signal.correlate2d(wide[n, ..., c], KERNELS[..., c, o], "valid") for c in range(3)]
            np.testing.assert_allclose(found[n, ..., o], sum(planes)[:: strides[0], :: strides[1]], atol=1e-12)


def test_convolution_in_pieces(monkeypatch):
    """However many images are done at a time, results and derivatives are the same to rounding."""
    weights = RANDOM.standard_normal((4, 7, 7, 5))

    def loss(x, kernels):
        return np.sum(nn.conv2d(x, kernels) * weights)

    whole = value_and_grad(loss, (0, 1))(X, KERNELS)
    monkeypatch.setattr("ebbtide.machine.pieces.PIECE_BYTES", 3000)
    parts = value_and_grad(loss, (0, 1))(X, KERNELS)
    np.testing.assert_allclose(parts[0], whole[0], rtol=1e-12)
    for found, wanted in zip(parts[1], whole[1], strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-12)


def test_pooling_takes_the_first_of_several():
    """Each window gives its largest element, whose cotangent goes to the first of several."""
    x = RANDOM.integers(0, 3, (2, 5, 6, 3)).astype(float)
    found = nn.max_pool2d(x)
    for i in range(2):
        for j in range(3):
            window = x[:, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2]
            np.testing.assert_array_equal(found[:, i, j], window.max((1, 2)))
    slope = grad(lambda x: np.sum(nn.max_pool2d(x)))(np.ones((2, 4, 4, 1)))
    expected = np.zeros((4, 4))
    expected[::2, ::2] = 1
    np.testing.assert_array_equal(slope[1, ..., 0], expected)


def test_values():
    """Activations and losses are their formulas."""
    x = RANDOM.standard_normal((5, 7)) * 3
    np.testing.assert_allclose(nn.gelu(x), 0.5 * x * (1 + special.erf(x / math.sqrt(2))), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(nn.gelu(x, approximate=True), nn.gelu(x), atol=5e-4)
    labels = RANDOM.integers(0, 7, 5)
    logarithms = np.log(nn.softmax(x))
    np.testing.assert_allclose(nn.cross_entropy(x, labels, "none"), -logarithms[np.arange(5), labels], rtol=1e-12)
    np.testing.assert_allclose(nn.cross_entropy(x, np.eye(7)[labels]), nn.cross_entropy(x, labels), rtol=1e-12)
    far = np.array([[1e4, 0.0, -1e4]])
    assert nn.cross_entropy(far, np.array([2])) == 2e4  # no exponential overflows
    np.testing.assert_allclose(grad(nn.cross_entropy)(far, np.array([2])), [[1, 0, -1]])
    np.testing.assert_array_equal(grad(lambda x: np.sum(nn.relu(x)))(np.array([-1.0, 0.0, 2.0])), [0, 0, 1])
    z = np.array([1 + 0.5j, -1 + 0.3j, 0.2 - 2j])
    np.testing.assert_array_equal(vjp(nn.relu, z)[1](np.ones(3) + 0j)[0], [1, 0, 1])  # of complex numbers as np.maximum
    normal = nn.layer_norm(x, epsilon=0.0)
    np.testing.assert_allclose([normal.mean(-1), normal.std(-1)], np.outer([0, 1], np.ones(5)), atol=1e-12)


def test_what_is_saved():
    """Each function keeps its best form: an output, a mask, probabilities once; nothing twice."""
    x, labels = RANDOM.standard_normal((6, 8)), RANDOM.integers(0, 8, 6)
    assert entries(nn.relu, x) == [("relu", (6, 8), "float64")]
    assert entries(lambda x: nn.gelu(2.0 * x), x) == [("gelu", (6, 8), "float64")]
    assert entries(lambda x: nn.cross_entropy(x, labels.copy()), x) == [
        ("cross_entropy", (6,), "int64"), ("cross_entropy", (6, 8), "float64"),
    ]  # fmt: skip
    # Labels that the caller holds are not the gradient's.
    assert entries(lambda x: nn.cross_entropy(x, labels), x) == [("cross_entropy", (6, 8), "float64")]
    assert saved_values(lambda x: nn.layer_norm(x, np.ones(8)), x).nbytes <= x.nbytes + 6 * 8 + 8 * 8
    pooled = saved_values(nn.max_pool2d, X)
    assert pooled.nbytes == 4 * 4 * 4 * 3  # one byte for each window and channel
    dropped = saved_values(lambda x: nn.dropout(x, 0.5, np.random.default_rng(0)), x)
    assert dropped.nbytes == x.size
    convolved = saved_values(lambda s: nn.conv2d(X * s, KERNELS * s), np.float64(2.0))
    held = sum(entry.bytes for entry in convolved.entries if entry.operation == "conv2d")
    assert held == X.nbytes + KERNELS.nbytes


def model(params, x, labels):
    """A net with all of it."""
    x = nn.relu(nn.conv2d(x, params["kernels"], params["bias"], padding=1))
    x = nn.max_pool2d(x)
    x = np.reshape(x, (x.shape[0], -1))
    x = nn.gelu(nn.layer_norm(nn.dense(x, params["first"]), params["scale"], params["offset"]))
    return nn.cross_entropy(nn.dense(x, params["last"], params["end"]), labels)


def parameters(dtype=np.float64):
    """Return parameters of the net for images of 6 x 4 with 2 channels, and 3 classes."""
    shapes = {"kernels": (3, 3, 2, 3), "bias": (3,), "first": (3 * 3 * 2, 5), "scale": (5,), "offset": (5,),
              "last": (5, 3), "end": (3,)}  # fmt: skip
    return {name: (0.5 * RANDOM.standard_normal(shape)).astype(dtype) for name, shape in shapes.items()}


IMAGES, LABELS = RANDOM.standard_normal((4, 6, 4, 2)), np.array([2, 0, 1, 1])


@pytest.mark.parametrize("executor", ["reference", "machine"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_model_in_programs_and_batches(executor, dtype):
    """A net of all functions has one gradient: as it stands, traced, and as a member of a batch with its own data."""
    params = [parameters(dtype) for _ in range(2)]
    images = [IMAGES.astype(dtype), -IMAGES.astype(dtype)]
    labels = np.stack([LABELS, LABELS[::-1]])
    slope = value_and_grad(model)
    expected = [slope(p, x, y) for p, x, y in zip(params, images, labels, strict=True)]
    stacked = {name: np.stack([p[name] for p in params]) for name in params[0]}
    traced = jit(slope, executor=executor)(params[0], images[0], LABELS)
    many = jit(vmap(slope), executor=executor)(stacked, np.stack(images), labels)
    tolerance = {"rtol": 1e-10, "atol": 1e-12} if dtype == np.float64 else {"rtol": 2e-3, "atol": 2e-5}
    np.testing.assert_allclose(traced[0], expected[0][0], **tolerance)
    for name in params[0]:
        assert traced[1][name].dtype == many[1][name].dtype == dtype
        np.testing.assert_allclose(traced[1][name], expected[0][1][name], **tolerance)
        for k in range(2):
            np.testing.assert_allclose(many[1][name][k], expected[k][1][name], **tolerance)


def test_a_model_to_second_order():
    """The derivatives of a net of all functions are those of finite differences, to second order."""
    params = parameters()
    check_grads(lambda first, kernels: model({**params, "first": first, "kernels": kernels}, IMAGES, LABELS),
                params["first"], params["kernels"])  # fmt: skip


def test_programs_have_the_operations_of_composites():
    """In a program a composite stands as what it is made of, and what two of them compute alike is computed once."""
    program = jit(grad(lambda x: nn.cross_entropy(nn.relu(x), LABELS))).program(np.ones((4, 3))).program
    names = [equation.name for equation in program.equations]
    assert not {"relu", "cross_entropy"} & set(names)
    assert names.count("exp") == 1


def test_labels_of_a_program():
    """Where labels are not known, -1 is the last class, with its derivative, and others are an error when it runs."""
    slope = jit(value_and_grad(nn.cross_entropy))
    x = RANDOM.standard_normal((2, 3))
    found, wanted = slope(x, np.array([-1, 0])), slope(x, np.array([2, 0]))
    assert found[0] == wanted[0]
    np.testing.assert_array_equal(found[1], wanted[1])
    with pytest.raises(IndexError):
        slope(x, np.array([3, 0]))


@pytest.mark.parametrize("letter", "bBhHiIlL")
def test_labels_of_any_integers(letter):
    """Labels may be of a type that cannot say how many classes there are, known or not, of one net or of many."""
    x, labels = RANDOM.standard_normal((3, 2, 300)), np.array([[3, 100], [0, 127], [1, 1]], letter)
    wanted = grad(lambda x: nn.cross_entropy(x, labels.astype(int), "sum"))(x)
    np.testing.assert_allclose(wanted.sum(-1), 0, atol=1e-15)
    slope = grad(lambda x, labels: nn.cross_entropy(x, labels, "sum"))
    for f in (slope, jit(slope), vmap(slope), jit(vmap(slope))):
        np.testing.assert_array_equal(f(x, labels), wanted)
    np.testing.assert_array_equal(grad(lambda x: nn.cross_entropy(x, labels, "sum"))(x), wanted)
    if letter in "bhil":
        last = np.full((3, 2), -1, letter)
        np.testing.assert_array_equal(jit(slope)(x, last), jit(slope)(x, np.full((3, 2), 299)))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("classes", [2047, 2048, 3000])
def test_labels_of_many_classes(classes, dtype):
    """A label is told from its neighbors also where the type of the logits cannot tell their numbers apart."""
    x, labels = np.zeros((2, classes), dtype), np.array([classes - 1, min(2048, classes - 2)])
    slope = grad(lambda x, labels: nn.cross_entropy(x, labels, "sum"))
    for f in (slope, jit(slope)):
        found = f(x, labels)
        assert found.dtype == dtype
        assert np.argwhere(found < 0).tolist() == [[0, labels[0]], [1, labels[1]]]


def test_dropout():
    """Elements are dropped with the probability given, others grown; None changes nothing; programs refuse to draw."""
    x = np.ones((200, 50), np.float32)
    found = nn.dropout(x, 0.25, np.random.default_rng(1))
    assert found.dtype == np.float32
    assert set(np.unique(found)) == {np.float32(0), np.float32(4 / 3)}
    assert abs(np.mean(found == 0) - 0.25) < 0.02
    assert nn.dropout(x, 0.25, None) is x
    slope = grad(lambda x: np.sum(nn.dropout(x, 0.25, np.random.default_rng(1))))(x)
    np.testing.assert_array_equal(slope, found)
    generator = np.random.default_rng(1)
    with pytest.raises(TraceError, match="random generator"):
        jit(lambda x: nn.dropout(x, 0.25, generator))(x)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nn.dropout(X, 1.0, None), "rate=1.0"),
        (lambda: nn.conv2d(X, KERNELS[:, :, :2]), "as many channels"),
        (lambda: nn.conv2d(X[:, :2], KERNELS), "larger than images"),
        (lambda: nn.conv2d(X, KERNELS[..., :0]), "have no elements"),
        (lambda: nn.conv2d(X, KERNELS, stride=0), "stride=0"),
        (lambda: nn.conv2d(X, KERNELS, padding=-1), "padding=-1"),
        (lambda: nn.max_pool2d(X, 9), "at least as large"),
        (lambda: nn.max_pool2d(X, (1, 2, 3)), "window="),
        (lambda: nn.cross_entropy(X, np.zeros((4, 9), int)), "one class for each row"),
        (lambda: nn.cross_entropy(X[0, 0], np.full(8, 3)), "the label 3, and there are 3 classes"),
        (lambda: nn.cross_entropy(X[0, 0], np.full(8, -1)), "the label -1"),
        (lambda: nn.cross_entropy(X, X[0]), "have to be alike"),
        (lambda: nn.cross_entropy(X, X, "median"), "reduction='median'"),
    ],
)
def test_refusals(call, message):
    """What cannot be computed is an error with the numbers."""
    with pytest.raises(ValueError, match=message):
        call()
