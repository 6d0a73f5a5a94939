"""A time loop that can be killed and started again: what it keeps in its journal, and how it goes on from there."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from ebbtide.agree import agree, is_alone
from ebbtide.arrays.traced import TracedArray
from ebbtide.errors import DeterminismError, TraceError
from ebbtide.loop.planning.plan import Earlier, Plan
from ebbtide.loop.resuming.changes import Changes
from ebbtide.loop.resuming.directory import ResumeDirectory
from ebbtide.loop.resuming.fingerprint import InputsRead
from ebbtide.loop.resuming.journal import Journal
from ebbtide.loop.resuming.journal_entries import Forward, Leaves, Planned, Reverse
from ebbtide.loop.resuming.links import Links
from ebbtide.loop.stepping.every import Every
from ebbtide.loop.values.generators import pack_generator, unpack_generator
from ebbtide.loop.values.state import checksums_of, layout_of, owned
from ebbtide.loop.values.structures import Structures
from ebbtide.schedules import schedule_from_json, schedule_to_json
from ebbtide.storage import compute_crc32c


@final
class Resumption:
    """
    The journal of a running loop.

    What an earlier run left is checked at once. A run that is new writes nothing before `begin`, so that a call that is
    refused leaves no file.

    Args:
        journal: The journal.
        policy: When to save.
        read_input: Returns the leaves of the input of a step, and their container; None for none.
        changes: What the steps change beside their state.
        nodes: How many nodes the tape around has.

    Memory:
        A few numbers, and what was found of an earlier run until it is taken.
    """

    __slots__ = (
        "_changes", "_cost", "_differentiated", "_first", "_has_ended", "_inputs", "_is_new", "_journal", "_met",
        "_next", "_nodes", "_policy", "_read", "_read_input", "_reversed", "_saved_at", "_start", "_structures",
        "_verify", "earlier", "incoming", "nodes_then", "statics",
    )  # fmt: skip

    def __init__(
        self,
        journal: Journal,
        policy: Every,
        read_input: Callable[[int], tuple[list[Any], Any]],
        changes: Changes,
        nodes: int,
    ) -> None:
        self._journal = journal
        self._policy = policy
        self._read_input = read_input
        self._read, self._structures = InputsRead(), Structures(reads_classes=True)
        # Steps that were reversed by this process, and how many were run or reversed at the last save.
        self._reversed = self._saved_at = 0
        self._start = time.perf_counter()
        self._has_ended = False  # whether another process has run the last step
        self._cost = 0.0  # seconds that the last save took
        self._next = 0  # of many ranks: how many were run or reversed when the next save is due
        # For each static value in the order of their first use: the step of it, a checksum, and its node's number.
        self.statics: list[tuple[int, int, int]] = []
        self._nodes, self.nodes_then = nodes, -1  # of the tape around when the loop begins, and when it began then
        self._met: list[int] = []  # the checksums of a reverse sweep without the end of its forward sweep
        self.incoming = 0
        self._first, self._verify = 0, False  # a checksum of the state after the first step, and whether it is compared
        # See `Links.inputs` and `Links.describe_inputs`.
        self._inputs, self._differentiated = dict[int, int](), ""
        self.earlier = 0  # steps that other processes ran before what was taken up of them
        self._changes = changes
        self._is_new = agree(not journal.is_there())
        if not self._is_new:
            journal.begin()

    @property
    def label(self) -> str:
        """See `Journal.label`."""
        return self._journal.label

    def begin(self, after: list[Any], *, verify: bool = True) -> None:
        """
        Write from here on: there is a plan, and the leaves of the state after the first step are such that can be kept.

        Raises:
            TraceError: They have derivatives from outside; nothing is written, which nobody could go on from.
        """
        checks = repr(checksums_of([plain(leaf) for leaf in after]))
        self._first, self._verify = compute_crc32c(np.frombuffer(checks.encode(), np.uint8)), verify
        self._journal.begin(self._first)

    def save_plan(self, plan: Plan) -> None:
        """Keep the schedule that was chosen, and what was measured for it."""
        self._journal.save_plan(Planned(schedule_to_json(plan.schedule), plan.sizes.measured_alone))

    def fail(self, error: BaseException | None, own: ResumeDirectory | None) -> None:
        """
        Leave the journal of a loop that failed to another call, unless the error is that its steps disagree.

        Args:
            error: Which one; None where it is not the loop's.
            own: The directory, if it is the loop's alone.
        """
        if isinstance(error, DeterminismError):
            self._journal.directory.spoil(error)
        if own is not None:
            own.close()

    # What an earlier run left.

    def find_plan(self) -> Earlier | None:
        """Return the schedule that an earlier run chose, and what it had measured."""
        record = None if self._is_new else self._journal.plan()
        if agree(record is None) or record is None:
            return None
        return Earlier(schedule_from_json(record.schedule), record.alone)

    def find_final(self) -> Forward | None:
        """Return the end of the forward sweep, if an earlier run came there."""
        found = self._checked(self._journal.final())
        self._has_ended = found is not None
        return found

    def find_forward(self) -> Forward | None:
        """
        Return the last place in the forward sweep of an earlier run, of which the end was not reached or is lost.

        Raises:
            ResumeError: Inputs that it read, or where it came to the reverse sweep all of them, are other ones.
        """
        found = self._checked(self._journal.latest_forward())
        reverse = self._journal.latest_reverse()
        if reverse is not None:
            # Before anything is written: the call that was begun could not go on from what another one leaves.
            self._check_inputs(reverse.read)
            self._met = [crc for _, crc, _ in reverse.met]
        return found

    def find_reverse(self, cotangents: list[Any], links: Links) -> Reverse | None:
        """
        Return the last place in the reverse sweep of an earlier run, which must have begun from these cotangents.

        Raises:
            ResumeError: It began from others, with derivatives of other inputs, or with more or less static values.
        """
        arrays = [None if pair is None else np.asarray(plain(pair[0])) for pair in cotangents]
        texts = repr([None if a is None else (a.shape, str(a.dtype), checksums_of([a])) for a in arrays])
        self.incoming = compute_crc32c(np.frombuffer(texts.encode(), np.uint8))
        self._inputs, self._differentiated = links.inputs, links.describe_inputs()
        found = self._journal.latest_reverse()
        if found is not None:
            self._journal.check("derivatives of inputs", self._differentiated, found.differentiated)
            self._journal.check("incoming cotangent", f"{self.incoming:08x}", f"{found.incoming:08x}")
            self._journal.check("number of static values", len(self.statics), len(found.met))
            self._saved_at = found.ran
        self._start = time.perf_counter()
        return found

    def anchors(self, below: int) -> tuple[int, ...]:
        """Return the steps below a limit whose restart states can be loaded."""
        return tuple([step for step in self._journal.anchors() if step < below])

    def load_anchor(self, step: int) -> list[Any] | None:
        """Return a restart state; None if it is lost."""
        found = self._journal.load_anchor(step)
        return None if found is None else from_leaves(found)

    def take_up(self, place: Forward | None) -> None:
        """See what steps that do not run again have changed, and give up restart states that are beyond a place."""
        self._journal.forget_anchors(0 if place is None else place.step)
        if place is not None:
            self._changes.take_up(place.changed, place.left)
        elif not self._is_new:
            self._journal.save_begin(self._first)  # nothing came of the first step of the run before

    def reached(self, arrays: Sequence[Any]) -> list[Any] | None:
        """
        Return the static values of the earlier run that the first step has not met; None if not all are there.

        The code before the loop makes the same nodes, in the same order where no set of names has another one in
        another process. So numbers say which is which of the arguments, and of others if no two have the same value.

        Args:
            arrays: The arrays that the code of the steps reaches, of the tape around.
        """
        if self._nodes != self.nodes_then:
            return None
        by_number = {array._node.number: (array, checksum_of(array)) for array in arrays}
        alike, found = Counter(crc for _, crc in by_number.values()), list[Any]()
        later = [(*by_number.get(number, (None, -1)), then) for step, then, number in self.statics if step]
        for array, now, then in later:
            if now != then or (alike[now] > 1 and array._node.signature is not None):
                return None
            found.append(array)
        return found

    def check_first(self, values: Sequence[Any]) -> None:
        """
        Compare the static values that the first step met, and what it gave, with those of the earlier run.

        Raises:
            ResumeError: A static value is another one.
            DeterminismError: The state after the step is.
        """
        for number, (value, (_, crc, _)) in enumerate(zip(values, self.statics, strict=False)):
            self._check_static(number, checksum_of(value), crc)
        then = self._journal.first
        if self._verify and then is not None and then != self._first:
            self._journal.directory.refuse_step(self._first, then)

    def check_statics(self, values: Sequence[Any], below: int) -> None:
        """Compare the static values that the steps below one have met with those of the earlier run."""
        then = [crc for step, crc, _ in self.statics if step < below]
        for number, (value, crc) in enumerate(zip(values, then, strict=False)):
            self._check_static(number, checksum_of(value), crc)
        self._journal.check("number of static values", len(values), len(then))

    def _check_static(self, number: int, now: int, then: int) -> None:
        self._journal.check(f"static value {number}", f"{now:08x}", f"{then:08x}")

    def _check_inputs(self, then: tuple[int, int]) -> None:
        """Read as many inputs as an earlier run has read, and compare them."""
        self._read_to(then[0])
        self._journal.check("inputs read so far", str(self._read), str(InputsRead(*then)))

    def _checked(self, found: Forward | None) -> Forward | None:
        """Take over what an entry says of static values and inputs, and compare the inputs."""
        if found is None:
            return None
        self.statics, self.nodes_then = [(step, crc, number) for step, crc, number in found.statics], found.nodes
        self._saved_at = self.earlier = found.ran
        self._check_inputs(found.inputs)
        return found

    # What this run keeps.

    def meet(self, index: int, statics: Sequence[Any]) -> None:
        """
        Note static values that were met up to a step, all of them in order.

        Raises:
            ResumeError: The reverse sweep that goes on was begun with another one.
        """
        for number, value in enumerate(statics[len(self.statics) :], len(self.statics)):
            found = checksum_of(value)
            if number < len(self._met):
                self._check_static(number, found, self._met[number])
            self.statics.append((index, found, value._node.number))

    def forward(self, done: int, state: list[Any], outputs: list[Any], ran: int) -> None:
        """Save a place in the forward sweep, if it is time."""
        if self._is_due(ran):
            begun = time.perf_counter()
            leaves = to_leaves(state)
            self._journal.save_anchor(done, leaves)
            self._journal.save_forward(self._place(done, leaves, outputs, ran))
            self._saved(ran, begun)

    def keep(self, step: int, state: list[Any]) -> None:
        """Save a restart state that each later run begins with."""
        self._journal.save_anchor(step, to_leaves(state), wanted=True)

    def final(self, steps: int, state: list[Any], outputs: list[Any], ran: int) -> None:
        """Save the end of the forward sweep."""
        begun = time.perf_counter()
        self._journal.save_final(self._place(steps, to_leaves(state), outputs, ran))
        self._saved(ran, begun)
        if not self._has_ended:
            self._changes.warn()

    def reverse(
        self, end: int, cotangent: list[Any], sums: list[Any], inputs: dict[Any, Any], ran: int, start: tuple[Any, ...]
    ) -> None:
        """
        Save a place in the reverse sweep, if it is time.

        Steps that are run again count as well: where only those that were reversed did, random kills of a gradient over
        1000 steps with 10 snapshots, saved every 200, cost 5.9 % of it on average, and 2.2 % with all of them.
        """
        self._reversed += 1
        if not end and self._reversed > 1:  # the first step alone tells little: it runs in any case
            self._changes.warn()
        if self._is_due(done := ran + self._reversed):
            begun = time.perf_counter()
            state = to_leaves([None if pair is None else pair[0] for pair in cotangent])
            given = to_leaves([*inputs.values()])
            sums_of_inputs = Leaves(given.arrays, [[self._inputs[key] for key in inputs], given.forms])
            compared = self.incoming, self._differentiated, start, (*self.statics,), self._read.pair
            self._journal.save_reverse(Reverse(end, state, to_leaves(sums), sums_of_inputs, ran, *compared))
            self._saved(done, begun)

    def _place(self, done: int, state: Leaves, outputs: list[Any], ran: int) -> Forward:
        self._read_to(done)
        kept = Leaves([plain(np.stack(held[:done]) if isinstance(held, list) else held[:done]) for held in outputs])
        read, left = self._read.pair, self._changes.left()
        statics = tuple(self.statics), self._nodes
        return Forward(done, state, kept, ran, *statics, read, self._changes.names(), left)

    def _read_to(self, count: int) -> None:
        """Read the inputs of steps, whose checksum says whether they are the same when the loop is resumed."""
        while self._read.count < count:
            index = self._read.count
            leaves, structure = self._read_input(index)
            told = "" if structure is None else self._structures.tell(structure)
            self._read = self._read.after(index, [plain(self._structures.tell_leaf(x) or x) for x in leaves], told)

    def _is_due(self, done: int) -> bool:
        if is_alone() or self._policy.steps is not None:
            seconds = time.perf_counter() - self._start
            return self._policy.is_due(done - self._saved_at, seconds, self._cost)
        return done >= self._next

    def _saved(self, done: int, begun: float) -> None:
        now = time.perf_counter()
        self._cost = now - begun
        if not is_alone() and self._policy.steps is None:
            # Where clocks differ, each save says after how many steps the next one is due.
            since = max(1, done - self._saved_at)
            self._next = done + self._policy.count(*agree(((begun - self._start) / since, self._cost)), since)
        self._start, self._saved_at = now, done


def plain(value: Any) -> Any:
    """Return the value of a leaf that depends on nothing outside of the loop's own tape."""
    if type(value) is TracedArray:
        if value._node is not None:
            raise TraceError(
                "A time loop with resume= keeps values in its journal, and here its state has derivatives from outside "
                "as well: by hvp or jvp of a gradient, a gradient of one, or vmap. Leave resume= out. A product of the "
                "Hessian with v can be resumed as grad(lambda x: jvp(f, (x,), (v,))[1], resume=DIR)(x)."
            )
        return plain(value._value)
    return value


def checksum_of(static: Any) -> int:
    """Return a checksum of a static value, an array of the tape around the loop, its type and layout included."""
    array = np.asarray(plain(static._value))
    text = f"{array.shape} {array.dtype} {checksums_of([array])}{layout_of(array)}"
    return compute_crc32c(np.frombuffer(text.encode(), np.uint8))


def to_leaves(values: Sequence[Any]) -> Leaves:
    """Return arrays, numbers, generators and None in the form of a journal."""
    arrays: list[np.ndarray | None] = []
    forms: list[Any] = []
    for leaf in values:
        value = plain(leaf)
        if isinstance(value, (np.ndarray, np.generic)):
            arrays.append(np.asarray(value))
            forms.append("array" if isinstance(value, np.ndarray) else "scalar")
        elif isinstance(value, np.random.Generator):
            packed, form = pack_generator(value)
            arrays.append(packed)
            forms.append(["generator", form])
        elif isinstance(value, complex):
            arrays.append(None)
            forms.append(["complex", value.real.hex(), value.imag.hex()])
        elif isinstance(value, float):
            arrays.append(None)
            forms.append(["float", value.hex()])
        else:
            arrays.append(None)
            forms.append(["value", value])
    return Leaves(arrays, forms)


def from_leaves(leaves: Leaves) -> list[Any]:
    """Return what `to_leaves` was given, in memory of its own."""
    found: list[Any] = []
    for array, form in zip(leaves.arrays, leaves.forms, strict=True):
        if form == "array":
            found.append(owned_as_it_lies(array))
        elif form == "scalar":
            assert array is not None
            found.append(array[()])
        elif form[0] == "generator":
            assert array is not None
            found.append(unpack_generator(array, form[1]))
        elif form[0] == "complex":
            found.append(complex(float.fromhex(form[1]), float.fromhex(form[2])))
        else:
            found.append(float.fromhex(form[1]) if form[0] == "float" else form[1])
    return found


def owned_as_it_lies(array: Any) -> np.ndarray:
    """Return a writable array; what was stored once for many elements is written out."""
    return array if array.flags.writeable else owned(array)
