"""Saved values of a step out of memory and back, and the checks of what runs again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ebbtide import DeterminismError
from ebbtide.arrays.containers import flatten
from ebbtide.arrays.context import current, entered
from ebbtide.ledger import SAVED, Ledger
from ebbtide.loop.stepping.inputs import Inputs
from ebbtide.loop.stepping.steps import Stepper, TapedStep
from ebbtide.loop.stepping.swap import Swap, is_paged, nodes_of, swappable_bytes
from ebbtide.loop.stepping.verify import Verifier
from ebbtide.storage import entry_nbytes
from ebbtide.tape.pager import Pager
from ebbtide.tape.record import Tape
from ebbtide.tape.region import Region
from ebbtide.tape.saved import SavedValue

STATIC = np.linspace(0.5, 1.5, 12).reshape(3, 4)
STATE = np.linspace(0.2, 1.1, 12).reshape(3, 4)
SEED = np.cos(STATE)


def step(u: Any, i: Any) -> Any:
    """A step that saves an array twice, one in another order of its axes, and one that the user can reach."""
    a = np.sin(u)
    return a * a + np.exp(a.T).T * STATIC


def taped() -> TapedStep:
    """A step on a tape."""
    region = Region(Tape(current().level + 1, Ledger()))
    stepper = Stepper(step, flatten(STATE)[1], Inputs(None, region, checked=False), False, region)
    with entered(ledger=Ledger()):
        return stepper.taped(0, [STATE.copy()], None)[0]


def swept(record: TapedStep) -> bytes:
    """The bits of the cotangent of the state."""
    (pair,), _, _ = record.sweep([(SEED.copy(), True)], [], retain=False)
    return pair[0].tobytes()


def test_restored_values_give_the_same_bits() -> None:
    """What went out and came back, also twice and from other memory, gives the bits of what stayed."""
    expected = swept(taped())
    record = taped()
    _, on_disk = swappable_bytes(record)
    swap = Swap(record)
    arrays = [np.array(array, order="C") for array in swap.take()]
    assert swap.arrays == []
    # Each array once, and none that the user can reach.
    assert entry_nbytes(arrays) == on_disk
    assert not any(np.shares_memory(array, STATIC) for array in arrays)
    assert swappable_bytes(record) == (0, entry_nbytes([]))
    swap.restore([array * np.nan for array in arrays])
    swap.forget()
    assert swappable_bytes(record) == (0, entry_nbytes([]))
    swap.restore(arrays)
    assert swappable_bytes(record) == (0, on_disk)
    assert swept(record) == expected


def test_memory_that_values_share_goes_out_once_and_comes_back_shared() -> None:
    """Views of one array are one array in the storage, and one in memory afterwards, which is counted once."""
    ledger = Ledger(watched=True)

    def stencil(u: Any, i: Any) -> Any:
        v = 0.9 * u
        return v + np.pad(v[:-1] * v[1:] * v[1:], [(1, 0), (0, 0)])

    with entered(ledger=ledger):
        region = Region(Tape(current().level + 1, ledger))
        stepper = Stepper(stencil, flatten(STATE)[1], Inputs(None, region, checked=False), False, region)
        record = stepper.taped(0, [STATE.copy()], Pager(ledger, None))[0]
    saved, (freed, on_disk) = ledger.held[SAVED], swappable_bytes(record)
    swap = Swap(record)
    arrays = [np.array(array, order="C") for array in swap.take()]
    assert entry_nbytes(arrays) == on_disk
    assert ledger.held[SAVED] == saved - freed
    assert sum(array.nbytes for array in arrays) <= freed
    swap.restore(arrays)
    assert ledger.held[SAVED] == saved - freed + sum(array.nbytes for array in arrays)
    assert swappable_bytes(record) == (sum(array.nbytes for array in arrays), on_disk)
    # A sweep has paged it by itself: it is in the storage, too, and there is no use for a page that may be old.
    paged = [value for node in nodes_of(record) for value in node.saved or () if type(value) is SavedValue]
    for value in paged:
        value.page = pytest.fail
    assert is_paged(record)
    swap.forget()
    assert not is_paged(record)


def test_what_shares_memory_with_what_stays_is_not_stored() -> None:
    """A saved value is left in memory where a guarded one, which the user can reach, keeps that memory anyway."""
    record = taped()
    for node in nodes_of(record):
        saved = node.saved or ()
        guarded = [SavedValue(value[:1], 0) for value in saved if type(value) is np.ndarray]
        node.saved = (*saved, *guarded)
    assert swappable_bytes(record) == (0, entry_nbytes([]))
    assert Swap(record).arrays == []


def test_a_step_that_leads_elsewhere_is_named_with_its_leaf() -> None:
    """The result of a step that runs again is compared with what the next one started from, leaf by leaf."""
    verifier = Verifier(["['u']", "['v']"], outputs=True, active=True)
    first, second = [np.zeros(3), np.ones(3)], [np.ones(3), np.ones(3)]
    verifier.ended(2, second)
    verifier.ended(2, second)
    verifier.before(1, first, again=True)
    verifier.taped(1, second)
    verifier.loaded(0)
    with pytest.raises(DeterminismError, match=r"Step 0 gave another result in \['v'\].*steps 0 to 0"):
        verifier.taped(0, [np.zeros(3), np.zeros(3)])
    verifier.begin()
    verifier.taped(0, second)
    verifier.emitted(0, [np.zeros(2)])
    verifier.emitted(0, [np.zeros(2)])
    with pytest.raises(DeterminismError, match="Step 0 gave another output"):
        verifier.emitted(0, [np.ones(2)])
    with pytest.raises(DeterminismError, match="Step 1"):
        verifier.ended(2, first)


def test_without_verify_nothing_is_compared() -> None:
    """verify=False takes no checksum."""
    verifier = Verifier(["u"], outputs=True, active=False)
    verifier.ended(2, [np.zeros(3)])
    verifier.ended(2, [np.ones(3)])
    verifier.before(1, [np.zeros(3)], again=True)
    verifier.taped(0, [np.ones(3)])
    verifier.emitted(0, [np.zeros(3)])
    verifier.emitted(0, [np.ones(3)])


def test_steps_that_the_forward_sweep_taped_are_compared() -> None:
    """A step that runs again must lead to where the first of a row of steps started that the forward sweep taped."""
    verifier = Verifier(["u"], outputs=False, active=True)
    for index in (3, 4, 7):
        verifier.before(index, [np.full(3, float(index))], again=False)
    verifier.loaded(2)
    verifier.taped(6, [np.full(3, 7.0)])
    verifier.taped(3, [np.zeros(3)])  # of a row: its result went into the next step as it was
    for _ in range(2):
        with pytest.raises(DeterminismError, match=r"Step 2 .*steps 2 to 2"):
            verifier.taped(2, [np.zeros(3)])
        verifier.swept(2, 0)
        verifier.begin()  # another sweep is compared, too
