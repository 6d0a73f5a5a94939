"""Optimizers of first order: torch's numbers, any container, programs and batches."""

from __future__ import annotations

import numpy as np
import pytest

from ebbtide import grad, jit, jvp, ravel_tree, vmap
from ebbtide.optimize import adam, adamw, lbfgs, momentum, rmsprop, sgd

START = np.array([1.5, -0.7, 0.2, -2.0])
MAKERS = {
    "sgd": lambda: sgd(0.1),
    "sgd decayed": lambda: sgd(0.1, weight_decay=0.3),
    "momentum": lambda: momentum(0.05, 0.8),
    "nesterov": lambda: momentum(0.05, 0.8, nesterov=True, weight_decay=0.3),
    "rmsprop": lambda: rmsprop(0.02, 0.95, 1e-6, weight_decay=0.3),
    "adam": lambda: adam(0.1),
    "adam decayed": lambda: adam(0.1, (0.8, 0.95), 1e-6, weight_decay=0.3),
    "adamw": lambda: adamw(0.1, weight_decay=0.3),
}
# What torch 2.13 has after the first, second and tenth step, in double precision: SGD, RMSprop, Adam and AdamW of
# torch.optim with the same numbers, on the sum of x^4 / 4 - cos(3 x) / 3.
TORCH = {
    "sgd": [
        [1.26025301176651, -0.579379063335113, 0.142735752660496, -1.22794154981989],
        [1.1197475423475, -0.46132734511434, 0.100920890813541, -1.09439246710579],
        [0.229972542763125, -0.0328952364126321, 0.00587612803453704, -0.215129901205792],
    ],
    "sgd decayed": [
        [1.21525301176651, -0.558379063335113, 0.136735752660496, -1.16794154981989],
        [1.04762978097552, -0.424762005276188, 0.0924980898069181, -1.00902208786028],
        [0.118257531580788, -0.0204750857965966, 0.00378658530760103, -0.106931633694565],
    ],
    "momentum": [
        [1.38012650588325, -0.639689531667556, 0.171367876330248, -1.61397077490995],
        [1.19482871488773, -0.531354835626157, 0.123622822504722, -1.14451681571342],
        [-0.360409493495576, 0.21723634351883, -0.0497926934680463, 0.57992734038555],
    ],
    "nesterov": [
        [1.24372771058986, -0.572541157001601, 0.143062177394447, -1.2511473948379],
        [0.995921504591502, -0.405840940709063, 0.0812396048632587, -0.826536379401955],
        [-0.224532945225002, 0.0812993203285374, -0.0142697246436628, 0.218486264294563],
    ],
    "rmsprop": [
        [1.41055742137537, -0.610557563343231, 0.110557913164185, -1.91055732897353],
        [1.35285932813721, -0.547390525952632, 0.0654487754323088, -1.85200439181601],
        [1.0940127600139, -0.269008089360378, 0.000678906102001059, -1.604319643583],
    ],
    "adam": [
        [1.40000000041711, -0.600000000829043, 0.10000000174629, -1.90000000012952],
        [1.3013839161941, -0.500037930827724, 0.00627385484417488, -1.8010251258293],
        [0.561832290930188, 0.17404531778624, 0.039110377274924, -1.12007021718069],
    ],
    "adam decayed": [
        [1.40000003511888, -0.600000070610979, 0.100000158066912, -1.90000001201839],
        [1.30150105685129, -0.500156256075897, 0.00742273128701762, -1.80125849626108],
        [0.571179514393842, 0.128084345023629, 0.0515455550902871, -1.14084743423127],
    ],
    "adamw": [
        [1.35500000041711, -0.579000000829043, 0.0940000017462903, -1.84000000012952],
        [1.21670350620155, -0.461692423033412, -0.0016626543822168, -1.68697455017419],
        [0.291370372500177, 0.191576031034653, 0.043798341758895, -0.767126337071547],
    ],
}  # fmt: skip


def slope(x):
    """Return the gradient of the sum of x^4 / 4 - cos(3 x) / 3."""
    return x**3 + np.sin(3.0 * x)


@pytest.mark.parametrize("name", MAKERS)
def test_steps_are_torchs(name):
    """Ten steps are those of torch's optimizer, to 1e-13 of the largest number."""
    optimizer = MAKERS[name]()
    x, state, found = START, optimizer.init(START), {}
    for k in range(10):
        x, state = optimizer.step(x, slope(x), state)
        found[k] = x
    np.testing.assert_allclose([found[k] for k in (0, 1, 9)], TORCH[name], rtol=0, atol=2e-13)
    assert START[0] == 1.5


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_containers_and_precision(name, dtype):
    """A container is stepped leaf by leaf as its vector is, in its own precision, and that of single is right."""
    optimizer = MAKERS[name]()
    tree = {"a": START[:3].astype(dtype), "b": [START[3:].reshape(1, 1).astype(dtype)]}
    flat, unravel = ravel_tree(tree)
    states = optimizer.init(tree), optimizer.init(flat)
    for _ in range(10):
        tree, first = optimizer.step(tree, {"a": slope(tree["a"]), "b": [slope(tree["b"][0])]}, states[0])
        flat, second = optimizer.step(flat, slope(flat), states[1])
        states = first, second
    assert flat.dtype == dtype
    np.testing.assert_array_equal(ravel_tree(tree)[0], flat)
    np.testing.assert_array_equal(unravel(flat)["a"], tree["a"])
    order = [0, 1, 2, 3]
    tolerance = 2e-13 if dtype == np.float64 else 3e-6
    np.testing.assert_allclose(flat, np.array(TORCH[name][2])[order], rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("executor", ["reference", "machine"])
def test_programs_and_batches(name, executor):
    """In one program for all steps, in donated memory, members of a batch take the steps that each takes alone."""
    optimizer = MAKERS[name]()
    traces = []

    def step(x, state, gradient, rate):
        traces.append(None)
        return optimizer.step(x, gradient, state, rate)

    members = np.stack([START, START[::-1], 0.1 * START]).astype(np.float32)
    rates = np.float32([0.1, 0.05, 0.02])
    alone = [(x, optimizer.init(x)) for x in members]
    x, state = members.copy(), vmap(optimizer.init)(members)
    run = jit(vmap(step), donate_argnums=(0, 1), executor=executor)
    addresses = set()
    for _ in range(5):
        x, state = run(x, state, slope(x), rates)
        addresses.add(x.ctypes.data)
        alone = [optimizer.step(y, slope(y), s, rate) for (y, s), rate in zip(alone, rates, strict=True)]
    assert len(traces) == 1
    assert len(addresses) == 1
    assert x.dtype == np.float32
    np.testing.assert_array_equal(state.count, np.full(3, 5))
    np.testing.assert_allclose(x, [y for y, _ in alone], rtol=3e-6)


def test_learning_rate_of_a_step():
    """A step takes the rate that it is given, a number or an array, in the precision of the parameters."""
    optimizer, x = sgd(1.0), np.float32([1, 2])
    state = optimizer.init(x)
    for rate in (0.5, np.float64(0.5), np.array(0.5)):
        found = optimizer.step(x, x, state, rate)[0]
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, 0.5 * x)


@pytest.mark.parametrize("name", MAKERS)
def test_a_traced_learning_rate_of_another_dtype(name):
    """A rate in double precision is an argument of a program, a batch and a derivative of a step in single."""
    optimizer, x = MAKERS[name](), np.arange(1.0, 4.0, dtype=np.float32)

    def step(rate):
        return optimizer.step(x, np.cos(x), optimizer.init(x), learning_rate=rate)[0]

    expected = step(np.float64(0.03))
    found = jit(step)(np.float64(0.03)), vmap(step)(np.array([0.03, 0.5]))[0], jvp(step, (0.03,), (1.0,))[0]
    for one in found:
        assert one.dtype == np.float32
        np.testing.assert_allclose(one, expected, rtol=1e-6)


def test_a_step_can_be_differentiated():
    """A step is a function like others: the derivative of the next value by the learning rate is that of sgd, -g."""
    optimizer = adam(0.1)
    x = START
    found = grad(lambda rate: np.sum(sgd(1.0).step(x, slope(x), sgd(1.0).init(x), rate)[0]))(0.3)
    np.testing.assert_allclose(found, -np.sum(slope(x)))
    change = grad(lambda rate: np.sum(optimizer.step(x, slope(x), optimizer.init(x), rate)[0]))(0.1)
    # The first step of Adam is the sign of the gradient.
    np.testing.assert_allclose(change, -np.sum(np.sign(slope(x))), rtol=0, atol=1e-7)


def test_refusals():
    """Numbers that no optimizer can work with, other forms and other states are errors that say so."""
    with pytest.raises(ValueError, match="adam was given learning_rate=-1"):
        adam(-1)
    with pytest.raises(ValueError, match="momentum was given decay=1: it has to be from 0 to below 1"):
        momentum(0.1, 1)
    with pytest.raises(TypeError, match="adamw cannot step the parameters, of type complex128"):
        adamw().init(np.ones(2, complex))
    with pytest.raises(TypeError, match="float"):
        adam().init(np.ones(2, int))
    optimizer = adam(0.1)
    with pytest.raises(ValueError, match="the gradient has"):
        optimizer.step({"a": START}, START, optimizer.init({"a": START}))
    with pytest.raises(ValueError, match="adam carries 2 sums, and the state has 1"):
        optimizer.step(START, START, momentum(0.1).init(START))


@pytest.mark.parametrize("make", [sgd, momentum, rmsprop, adam, adamw])
@pytest.mark.parametrize("wrong", ["0.1", None, np.nan, [0.1], 1j, np.ones(2)], ids=str)
def test_what_is_no_number(make, wrong):
    """A learning rate is a number, for all steps or for one."""
    with pytest.raises(ValueError, match=f"{make.__name__} was given learning_rate=.*: it has to be a number"):
        make(wrong)
    if wrong is not None and not isinstance(wrong, float):
        optimizer = make(0.1)
        with pytest.raises(TypeError, match=f"{make.__name__} was given learning_rate="):
            optimizer.step(START, START, optimizer.init(START), wrong)
    make(np.float32(0.1)).init(START)
    make(np.array(0.1)).init(START)


@pytest.mark.parametrize("make", [sgd, momentum, rmsprop, adam, adamw])
@pytest.mark.parametrize("wrong", [np.array(1j), np.complex64(0.1)], ids=["array", "number"])
def test_a_complex_learning_rate_is_refused(make, wrong):
    """A learning rate of NumPy's is real, too."""
    with pytest.raises(ValueError, match=f"{make.__name__} was given learning_rate=.*: it has to be a number"):
        make(wrong)


@pytest.mark.parametrize("name", MAKERS)
def test_a_step_keeps_the_dtype(name):
    """A gradient or a state of another dtype would change that of the parameters, and is refused; numbers do not."""
    optimizer = MAKERS[name]()
    x = START.astype(np.float32)
    state = optimizer.init(x)
    for wrong in (START, x + 1j, x.astype(np.float16), x.astype(int)):
        with pytest.raises(TypeError, match=rf"are of float32, and the gradient is of {wrong.dtype} there"):
            optimizer.step(x, wrong, state)
    if state.sums:
        with pytest.raises(TypeError, match="are of float32, and a sum of the state is of float64 there"):
            optimizer.step(x, x, optimizer.init(START))
    with pytest.raises(TypeError, match="cannot step the parameters, of type int"):
        optimizer.step(START.astype(int), START.astype(int), state)
    assert optimizer.step(x, x.astype(">f4"), state)[0].dtype == np.float32
    with pytest.raises(TypeError, match="is of float64 there"):
        optimizer.step(np.float32(2.0), 3.0, optimizer.init(np.float32(2.0)))
    assert isinstance(optimizer.step(2.0, 3, optimizer.init(2.0))[0], float)


@pytest.mark.parametrize("make", [sgd, momentum, rmsprop, adam, adamw])
def test_the_learning_rate_of_a_step_is_looked_at(make):
    """It is one that the optimizer could be made with."""
    optimizer = make(0.1)
    state = optimizer.init(START)
    for wrong in (-1, -0.5, np.nan, np.inf, np.float32(-1), np.array(np.nan)):
        with pytest.raises(ValueError, match=f"{make.__name__} was given learning_rate=.*: it has to be a number"):
            optimizer.step(START, START, state, wrong)
    for wrong in (True, np.True_, np.complex64(0.1), np.array(1j)):
        with pytest.raises(TypeError, match=f"{make.__name__} was given learning_rate=.*: it is a real number"):
            optimizer.step(START, START, state, wrong)
    with pytest.raises(ValueError, match="learning_rate=True: it has to be a number"):
        make(True)


@pytest.mark.parametrize("name", MAKERS)
def test_parameters_without_leaves(name):
    """An empty container is stepped, too, time after time, by the states that its own steps return."""
    optimizer = MAKERS[name]()
    parameters, state = {}, optimizer.init({})
    for _ in range(3):
        parameters, state = optimizer.step(parameters, {}, state)
    assert parameters == {}
    assert state.count == 3.0


@pytest.mark.parametrize("make", [adam, adamw])
def test_adam_without_memory(make):
    """With decays of 0 each step of Adam is along the sign of the present gradient alone."""
    optimizer = make(0.1, (0.0, 0.0), weight_decay=0.0)
    x, state = START, optimizer.init(START)
    for gradient in (START, -START[::-1], 3.0 * START):
        before = x
        x, state = optimizer.step(x, gradient, state)
        np.testing.assert_allclose(x, before - 0.1 * np.sign(gradient), rtol=0, atol=1e-8)


@pytest.mark.parametrize("decays", [3, None, (0.9,), (0.9, 0.99, 0.999), "ab", (0.9, "a"), (0.9, 1.0)], ids=str)
def test_decays_of_adam(decays):
    """They are two numbers."""
    with pytest.raises(ValueError, match=r"adam was given decays?="):
        adam(0.1, decays)


def test_forms_of_a_step():
    """A gradient or a sum that would fit by broadcasting is refused: the parameters would come out in another shape."""
    optimizer = adam(0.1)
    state = optimizer.init({"a": START})
    for gradient in (START[:, None], START[:1], 1.0):
        with pytest.raises(ValueError, match=r"parameters\['a'\] have the shape \(.*\), and the gradient has"):
            optimizer.step({"a": START}, {"a": gradient}, state)
    with pytest.raises(ValueError, match="a sum of the state has"):
        optimizer.step({"a": START}, {"a": START}, optimizer.init({"a": START[:1]}))
    for wrong in (None, 3, (1, 2), START):
        with pytest.raises(TypeError, match=r"for its state. Start with init"):
            optimizer.step({"a": START}, {"a": START}, wrong)


def test_lbfgs():
    """It is the minimizer of SciPy under the name by which users look for it."""
    found = lbfgs(lambda m: np.sum((m["a"] - 1.0) ** 2), {"a": np.zeros(3)}, options={"maxiter": 50})
    assert found.converged
    np.testing.assert_allclose(found.m["a"], 1.0)
