"""What the steps of time loops change of what their code finds, and what of it is not there in a resumed run."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, final

from ebbtide.loop.resuming.directory import ResumeDirectory
from ebbtide.loop.values.code import data_of

# The place of a function among those of a loop, a name by which it finds data, and a text of what that holds.
Found = tuple[int, str, str]
# Of more names none are kept for messages: some 40 bytes each.
_MOST_NAMED = 500


@final
class Changes:
    """
    What the steps of a loop change beside their state: a memo, a counter, or what a later loop computes with.

    Args:
        functions: The code of the loop and the structure of its state.
        directory: What the loops of a call share.

    Memory:
        Short texts.
    """

    __slots__ = ("_before", "_directory", "_functions", "_is_taken_up", "_own", "_taken_up", "found")

    def __init__(self, functions: Sequence[Any], directory: ResumeDirectory) -> None:
        self._functions = functions
        self._directory = directory
        found = self._look(with_code=True)
        self._before = {one for one in found if not one[1].endswith("()")}
        # What the code finds by names when the loop begins, for the message where that is not the same.
        named = sorted({(name, text) for _, name, text in found})
        self.found = (*named,) if len(named) <= _MOST_NAMED else ()
        self._is_taken_up, self._taken_up = False, set[Found]()
        self._own = set[str]()

    def _look(self, *, with_code: bool = False) -> set[Found]:
        looks = [data_of(function, with_code=with_code) for function in self._functions]
        return {(k, *pair) for k, look in enumerate(looks) for pair in look.items()}

    def names(self) -> tuple[str, ...]:
        """Return by which names the steps of this loop and of those before have found what they changed."""
        return tuple(sorted(self._directory.changed))

    def left(self) -> tuple[Found, ...]:
        """Return what this loop has changed so far: as it is now, or else as the run left it that is taken up."""
        now = self._look()
        anew = {name for _, name, _ in now ^ self._before}
        self._own |= anew
        self._directory.changed |= self._own
        kept = [one for one in self._taken_up if one[1] not in anew]
        return (*sorted([*kept, *[one for one in now if one[1] in anew]]),)

    def take_up(self, names: Sequence[str], left: Sequence[Found]) -> None:
        """
        See what an earlier run had changed that is another one now, before the steps after that run.

        Args:
            names: What `names` gave then.
            left: What `left` gave then.
        """
        self._before, self._is_taken_up, self._taken_up = self._look(), True, {*left}
        self._own |= {name for _, name, _ in left}
        self._directory.changed.update(names)
        self._directory.lost |= {name for _, name, _ in self._taken_up - self._before}

    def warn(self) -> None:
        """
        Warn if what steps changed before the run was resumed is another one now that the steps of this loop have run.

        That is what loops before have left and this one finds, and what it has changed itself: it cannot be told
        whether steps compute with that, as with a parameter that one of them sets, or not, as with a counter. A memo
        that was filled again is as it was.
        """
        if not self._directory.lost:
            return
        self.left()
        found = self._directory.lost & {name for _, name, _ in self._before} - self._own
        found |= {name for _, name, _ in self._taken_up - self._look()}
        if not self._is_taken_up:
            self._directory.lost -= self._own
        if found:
            self._directory.lost -= found
            names = ", ".join(map(repr, sorted(found)))
            warnings.warn(
                f"The steps of a time loop changed {names} before the run in {self._directory.path} was resumed, and "
                "were not all run again, so that what is found by that name is another one now. Steps, until= and code "
                "after the loop that compute with it give another value and gradient. Put it into the state or the "
                "outputs of the loop; if nothing computes with it, as with a counter, this is no concern.",
                RuntimeWarning,
                stacklevel=2,
            )
