"""Functions of NumPy arrays as operations of torch's graph: values, gradients, and what is refused."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import ebbtide
from ebbtide import Budget, BudgetError, MutationError, ReleasedValueError, TraceError, grad, jit, trace

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")

from ebbtide.torch import function  # noqa: E402 - after the test whether there is torch

# Torch's own forward mode loads what its version of this year calls deprecated.
quiet_torch = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")


def tensors(*shapes, dtype=torch.float64):
    """Return tensors of normal numbers that require a gradient."""
    generator = torch.Generator().manual_seed(len(shapes))
    return [torch.randn(shape, dtype=dtype, generator=generator).requires_grad_() for shape in shapes]


def here():
    """Return file and line of the caller."""
    frame = sys._getframe(1)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def wave(x, y):
    """Use two arrays in several ways."""
    h = np.sin(x) * y
    return h[1:] * h[:-1], np.sum(np.exp(h))


def overlapping(x):
    """Return views of one array."""
    h = np.sin(x)
    return h[1:], h[:-1], h


CASES = {
    "elementwise": (lambda x: np.tanh(x) * np.exp(-x * x), [(3, 4)]),
    "product": (lambda a, b: a @ b, [(3, 4), (4, 2)]),
    "broadcast": (lambda x, y, z: x * y + z, [(3, 1), (1, 4), ()]),
    "several outputs": (wave, [(5,), (5,)]),
    "dict": (lambda x, y: {"b": x * y, "a": [np.sum(x), (y,)]}, [(3,), (3,)]),
    "written in place": (lambda x: np.multiply(x, x, out=x)[::-1], [(4,)]),
    "the argument itself": (lambda x, y: (x, y * x), [(3,), (3,)]),
    "one output twice": (lambda x: [x * x] * 2, [(3,)]),
    "overlapping outputs": (overlapping, [(4,)]),
    "a constant output": (lambda x: (np.sum(x), np.ones(2)), [(3,)]),
    "an unused argument": (lambda x, y: np.sin(x), [(3,), (2,)]),
    "no element": (np.sin, [(0, 3)]),
    "checkpoint": (ebbtide.checkpoint(lambda u: np.sin(np.exp(u))), [(4,)]),
    "time loop": (lambda x: ebbtide.timeloop(lambda u, _: np.sin(u) * x, x, 3), [(4,)]),
    "jitted": (jit(lambda x, y: np.sin(x) @ y), [(3, 4), (4,)]),
    "gradient": (grad(lambda x: np.sum(np.sin(x) * x)), [(4,)]),
    "jitted gradient": (jit(grad(lambda x: np.sum(np.sin(x) * x))), [(4,)]),
    "program": (trace(lambda x, y: np.sin(x) @ y, np.zeros((3, 4)), np.zeros(4)), [(3, 4), (4,)]),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients(name):
    """Gradients agree with differences, and so do gradients of gradients."""
    f, shapes = CASES[name]
    given = tensors(*shapes)
    leaves = lambda *args: tuple([x for x in torch.utils._pytree.tree_leaves(function(f)(*args)) if x.requires_grad])
    assert torch.autograd.gradcheck(leaves, given)
    if name != "no element":  # torch's own check divides by the number of elements
        again = function(f, create_graph=True)
        twice = lambda *args: tuple([x for x in torch.utils._pytree.tree_leaves(again(*args)) if x.requires_grad])
        assert torch.autograd.gradgradcheck(twice, given)


@pytest.mark.parametrize(
    "f",
    [
        lambda z: z * z * np.conj(z),
        lambda z: np.abs(z) ** 2,
        lambda z: (np.real(z) * np.imag(z), np.exp(1j * z)),
        lambda z: (z.reshape(3, 1) @ np.conj(z).reshape(1, 3), np.sum(np.real(z))),
    ],
    ids=["holomorphic and not", "real", "parts", "products"],
)
def test_complex_gradients(f):
    """The gradient of a complex tensor is torch's: that of |z|^2 is 2 z."""
    (z,) = tensors((3,), dtype=torch.complex128)
    assert torch.autograd.gradcheck(function(f), (z,))
    assert torch.autograd.gradgradcheck(function(f, create_graph=True), (z,))
    function(lambda z: np.sum(np.abs(z) ** 2))(z).backward()
    assert torch.allclose(z.grad, 2 * z.detach(), rtol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128])
def test_dtypes_are_kept(dtype):
    """Results and gradients have the dtype of the tensors; integers and booleans pass through."""
    (x,) = tensors((4,), dtype=dtype)
    result, places, mask = function(lambda x, k, m: (x[k] * 2 * m, k + 1, ~m))(
        x, torch.tensor([2, 1]), torch.tensor([True, False])
    )
    assert (result.dtype, places.dtype, mask.dtype) == (dtype, torch.int64, torch.bool)
    assert (result.requires_grad, places.requires_grad, mask.requires_grad) == (True, False, False)
    result.backward(torch.ones_like(result))
    assert x.grad.dtype == dtype
    assert x.grad.tolist() == [0, 0, 2, 0]
    assert mask.tolist() == [False, True]


def test_containers_and_other_arguments():
    """Tensors are found in containers and among keywords; what is no tensor is passed as it is."""
    seen = []

    def f(net, *, scale, rate, name):
        seen.append((name, rate, scale[1]))
        return [net["w"] * scale[0] * rate, {"b": net["b"] + 1.0, "none": None}]

    w, b, s = tensors((2,), (2,), (2,))
    rate = np.full((), 2.0)
    first, second = function(f)({"w": w, "b": b.detach()}, scale=(s, 3), rate=rate, name="relu")
    first.sum().backward()
    assert seen == [("relu", rate, 3)]
    assert seen[0][1] is rate
    assert second["none"] is None
    assert (second["b"].requires_grad, b.grad) == (False, None)
    assert torch.equal(w.grad, 2 * s.detach())
    assert torch.equal(s.grad, 2 * w.detach())


def test_one_tensor_twice():
    """A tensor that is two arguments gets the sum of both gradients."""
    (x,) = tensors((3,))
    function(lambda a, b: np.sum(a * a * b))(x, x).backward()
    assert torch.allclose(x.grad, 3 * x.detach() ** 2, rtol=1e-14)


def test_within_a_graph():
    """Torch's operations before and after are differentiated with ours, in modules and under torch's checkpoint."""
    (x, w) = tensors((5,), (5,))
    ours = function(lambda u, w: np.sin(u) * w)
    theirs = lambda u, w: torch.sin(u) * w
    for f in (ours, lambda u, w: torch.utils.checkpoint.checkpoint(ours, u, w, use_reentrant=False)):
        found = torch.autograd.grad(f(x * x, w).pow(3).sum(), (x, w))
        expected = torch.autograd.grad(theirs(x * x, w).pow(3).sum(), (x, w))
        for one, other in zip(found, expected, strict=True):
            assert torch.allclose(one, other, rtol=1e-13)
    layer = torch.nn.Linear(5, 2, dtype=torch.float64)
    function(np.tanh)(layer(x)).sum().backward()
    assert layer.weight.grad.shape == (2, 5)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.T, lambda x: x[::2, 1:], lambda x: x.flip(0), lambda x: x[0].expand(3, 4), lambda x: x.diagonal(),
        lambda x: x[1, 2], torch._neg_view,
    ],
)  # fmt: skip
def test_layouts(view):
    """Tensors that are not contiguous, expanded ones and views give the values and gradients of copies."""
    (x,) = tensors((3, 4))
    f = function(lambda u: np.sin(u) * u)
    (found,) = torch.autograd.grad(f(view(x)).sum(), x)
    (expected,) = torch.autograd.grad(f(view(x).clone()).sum(), x)
    assert torch.equal(found, expected)
    (z,) = tensors((3,), dtype=torch.complex128)
    assert torch.equal(f(z.conj()), f(z.conj().resolve_conj()))


def test_memory_is_shared():
    """Arguments and results are not copied; a result that overlaps an argument or another result is."""
    (x,) = tensors((1000,))
    places = []

    def f(x, y):
        places.append(y.ctypes.data)
        return y[10:], np.multiply(y, 2.0)

    y = x.detach()
    shared, fresh = function(f)(x, y)
    assert places == [y.data_ptr()]
    with torch.no_grad():
        same = function(lambda x: x)(x)
    before = x.detach().clone()
    for result in (shared, same):
        result.zero_()
    fresh.zero_()
    assert torch.equal(x.detach(), before)
    kept = []
    result = function(lambda x: kept.append(np.ones(3)) or kept[0])(x)
    assert result.data_ptr() == kept[0].ctypes.data


def test_unusual_results():
    """Results that torch cannot share are copied: read-only, reversed, of the other byte order, NumPy's scalars."""
    (x,) = tensors((3,))
    constant = np.arange(3.0)
    for f, expected in (
        (lambda x: np.broadcast_to(constant, (2, 3)), [[0, 1, 2]] * 2),
        (lambda x: constant[::-1], [2, 1, 0]),
        (lambda x: constant.astype(">f8"), [0, 1, 2]),
        (lambda x: np.float32(2.0), 2.0),
        (lambda x: 3, 3),
        (lambda x: True, True),
        (lambda x: [], []),
        (lambda x: None, None),
    ):
        result = function(f)(x)
        assert (result if result is None or result == [] else result.tolist()) == expected
    with pytest.raises(TypeError, match=r"returned an array of float128.*astype"):
        function(lambda x: constant.astype(np.longdouble))(x.detach())
    with pytest.raises(TypeError, match="'text'"):
        function(lambda x: "text")(x.detach())


def test_only_what_is_needed_is_differentiated():
    """Without a gradient to take, the function runs on plain arrays; else on traced ones where a tensor requires it."""
    kinds = []

    def f(x, y):
        kinds.append((type(x) is np.ndarray, type(y) is np.ndarray))
        return x * y

    x, y = tensors((3,), (3,))
    g = function(f)
    assert not g(x.detach(), y.detach()).requires_grad
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert not g(x, y).requires_grad
    assert kinds == [(True, True)] * 3
    for args in ((x, y.detach()), (x.detach(), y), (x, y)):
        kinds.clear()
        assert g(*args).requires_grad
        assert kinds == [tuple([not arg.requires_grad for arg in args])]


def test_unused_outputs():
    """A cotangent that is not there is zero, and without any there is no reverse run."""
    x, y = tensors((3,), (3,))
    first, second = function(lambda x, y: (x * x, x * y))(x, y)
    (found,) = torch.autograd.grad(second.sum(), y)
    assert torch.equal(found, x.detach())

    class NoneOfIt(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            return None

    first, _ = function(lambda x, y: (x * x, x * y))(x, y)
    NoneOfIt.apply(first).sum().backward()
    assert (x.grad, y.grad) == (None, None)


def test_retain_graph():
    """With retain_graph=True the reverse run can be done again, with the same bits, and the last one consumes."""
    x, y = tensors((6,), (6,))
    result = function(wave)(x, y)
    total = lambda: result[0].sum() + 2 * result[1]
    first = torch.autograd.grad(total(), (x, y), retain_graph=True)
    second = torch.autograd.grad(total(), (x, y), retain_graph=True)
    third = torch.autograd.grad(total(), (x, y)); line = here()  # noqa: E702 - the line of the call
    for a, b, c in zip(first, second, third, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)
    with pytest.raises(ReleasedValueError, match="retain_graph=True") as caught:
        torch.autograd.grad(total(), (x, y))
    assert line in str(caught.value)


CHANGES = {
    "data": lambda x: x.data.add_(1.0),
    "array": lambda x: np.add(x.detach().numpy(), 1.0, out=x.detach().numpy()),
    "in place": lambda x: x.detach().add_(1.0),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("saved", ["argument", "result"])
def test_changes_are_found(saved, change):
    """A tensor that the reverse run needs and that was changed is an error, whoever changed it; others may change."""
    (x,) = tensors((3,))
    f = function(lambda x: np.sin(x) if saved == "argument" else np.exp(x))
    for changed in ("argument", "result"):
        held = {"argument": x * 1.0}
        held["result"] = f(held["argument"])
        expected = torch.cos(x.detach()) if saved == "argument" else torch.exp(x.detach())
        CHANGES[change](held[changed])
        if changed == saved:
            with pytest.raises(MutationError, match="changed after"):
                held["result"].sum().backward()
        else:
            (found,) = torch.autograd.grad(held["result"].sum(), x)
            assert torch.allclose(found, expected, rtol=1e-14)


def test_gradients_of_gradients_are_asked_for():
    """Torch's create_graph=True is refused without that of the function, and never gives half a derivative."""
    (x,) = tensors((3,))
    cube = lambda x: np.sum(x**3)
    with pytest.raises(TraceError, match=r"function\(function, create_graph=True\)"):
        torch.autograd.grad(function(cube)(x), x, create_graph=True)
    (slope,) = torch.autograd.grad(function(cube, create_graph=True)(x), x, create_graph=True)
    assert torch.allclose(torch.autograd.grad((slope + x).sum(), x)[0], 6 * x.detach() + 1, rtol=1e-14)


def test_create_graph_holds_its_arguments_against_changes():
    """Torch itself says that an argument changed which the gradient of the gradient needs."""
    (x,) = tensors((3,))
    argument = x * 1.0
    result = function(lambda x: np.sum(x * 2.0), create_graph=True)(argument)
    argument.add_(1.0)
    with pytest.raises(RuntimeError, match="inplace operation"):
        torch.autograd.grad(result, x, create_graph=True)


def test_what_is_no_array_is_refused():
    """Tensors that NumPy has no arrays of are refused with what to do."""
    f = function(lambda x: x * 2.0)
    for wrong, message in (
        (torch.ones(3, dtype=torch.bfloat16), r"bfloat16.*to\(torch.float32\)"),
        (torch.ones(3).to_sparse(), r"sparse_coo.*to_dense\(\)"),
        (torch.ones(3, device="meta"), r"on meta.*cpu\(\)"),
    ):
        for requires in (False, True):
            with pytest.raises(TypeError, match=message):
                f(wrong.detach().requires_grad_(requires))


@quiet_torch
def test_other_derivatives_are_refused():
    """Transforms of torch.func and forward mode are refused: no tangent and no batch is lost."""
    f = function(lambda x: np.sum(x * x))
    x = torch.ones(3)
    for call in (lambda: torch.func.grad(f)(x), lambda: torch.vmap(f)(x), lambda: torch.func.jvp(f, (x,), (x,))):
        with pytest.raises(TraceError, match=r"torch\.func"):
            call()
    y = torch.ones(3, requires_grad=True)
    result = f(y)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        for call in (lambda: f(dual), lambda: result.backward(dual[0])):
            with pytest.raises(TraceError, match=r"ebbtide\.jvp"):
                call()
    squares = function(lambda x: x * x)
    assert torch.equal(torch.autograd.functional.jacobian(squares, x), 2 * torch.eye(3))
    with pytest.raises(TypeError, match="stands for others"):
        torch.autograd.functional.jacobian(squares, x, vectorize=True)


def test_writing_where_no_gradient_is_taken():
    """A function that writes into its argument does it in a traced copy; into the caller's tensor it may not."""
    def clear(x):
        x[0] = 0.0
        return x * x

    (x,) = tensors((3,))
    before = x.detach().clone()
    function(clear)(x).sum().backward()
    assert x.grad[0] == 0
    with pytest.raises(ValueError, match="read-only") as caught:
        function(clear)(x.detach())
    assert "write into a copy" in caught.value.__notes__[0]
    assert torch.equal(x.detach(), before)


def test_programs_count_their_arguments():
    """A program that is given other arrays than it was traced for says how many it takes."""
    program = trace(lambda x, y: x * y, np.zeros(3), np.zeros(3))
    with pytest.raises(TypeError, match="takes 2 arrays, x, y, and was given 1"):
        function(program)(torch.zeros(3))


def test_budget():
    """A budget bounds forward and reverse run, and a refusal names the least that does."""
    (x,) = tensors((20_000,))

    def deep(x):
        for _ in range(20):
            x = np.sin(x)
        return np.sum(x)

    expected = torch.autograd.grad(function(deep)(x), x)[0]
    with pytest.raises(BudgetError) as caught:
        function(deep, budget=Budget(4 * 160_000))(x).backward()
    assert torch.equal(torch.autograd.grad(function(deep, budget=Budget(caught.value.least))(x), x)[0], expected)
    paged = function(deep, budget=Budget(8 * 160_000, "64 MiB"))(x)
    assert torch.equal(torch.autograd.grad(paged, x)[0], expected)


def test_exceptions_pass():
    """What the function or a rule raises reaches the caller, and the next call is right."""
    fail = [True]

    def rule(g, x):
        if fail[0]:
            raise ZeroDivisionError
        return g * np.cos(x)

    sine = ebbtide.primitive(lambda x: np.sin(x * 1.0), vjp=(rule,))
    (x,) = tensors((3,))
    f = function(lambda x: sine(x) * 2.0)
    with pytest.raises(ZeroDivisionError):
        function(lambda x: 1 / 0)(x)
    result = f(x)
    with pytest.raises(ZeroDivisionError):
        result.sum().backward()
    with pytest.raises(ReleasedValueError):
        result.sum().backward()
    fail[0] = False
    f(x).sum().backward()
    assert torch.allclose(x.grad, 2 * torch.cos(x.detach()), rtol=1e-14)


def test_name_and_text():
    """The function keeps name and text of what it is made of."""
    assert function(wave).__name__ == "wave"
    assert function(wave).__doc__ == wave.__doc__
