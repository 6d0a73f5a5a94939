"""
The errors of Ebbtide: one tree, so that `except EbbtideError` catches all.

EbbtideError
├── TraceError             the recorded function did what a trace cannot follow
│   ├── RuleMissingError       an operation has no derivative rule
│   └── StaleViewError         a view was used after its base changed where it cannot be followed
├── CotangentError         a rule or a caller gave a cotangent or tangent of the wrong type
├── ReleasedValueError     a saved value or a pullback was used after it was consumed
├── MutationError          an array was changed between its recording and its use
├── DeterminismError       a step gave another result when it was run again
├── SolutionError          a solver found no solution, so that there is no derivative of one
├── BudgetError            the budget is too small; `least` is the number of bytes that would do
├── ScheduleError          a schedule and the loop that follows it disagree
├── StorageError           snapshots or paged values could not be written or read
├── ResumeError            the run in a directory for resuming is another one than this call
├── RankError              another process of the run failed
└── ProgramError           a traced program or its plan failed a check: a defect of Ebbtide itself

Every message says what is wrong, because of what, and what to do.
"""


class EbbtideError(Exception):
    """The base of all errors that Ebbtide raises on its own account."""


class TraceError(EbbtideError, TypeError):
    """The recorded function did what a trace cannot follow."""


class RuleMissingError(TraceError):
    """An operation has no derivative rule."""


class StaleViewError(TraceError):
    """A view was used after its base changed in a way that the view cannot follow."""


class CotangentError(EbbtideError, ValueError):
    """A cotangent or tangent has the wrong structure, shape or dtype."""


class ReleasedValueError(EbbtideError, RuntimeError):
    """A saved value or a pullback was used after it was consumed."""


class MutationError(EbbtideError, RuntimeError):
    """An array that the reverse sweep needs was changed after it was recorded."""


class DeterminismError(EbbtideError, RuntimeError):
    """A step or a checkpointed function gave another result when it was run again."""


class SolutionError(EbbtideError, RuntimeError):
    """A solver found no solution of which a derivative could be taken, or the derivative has no solution."""


class BudgetError(EbbtideError, MemoryError):
    """
    The budget is too small for the call.

    Args:
        message: What is wrong, because of what, and what to do.
        least: The least number of bytes of memory at which the call runs, by what is known when it is refused; of a
            schedule that was asked for what following it as it is takes, though less may do.
        least_disk: Where the disk is what is short: the bytes of it that the call needs with that memory; else 0.
    """

    def __init__(self, message: str, least: int, least_disk: int = 0) -> None:
        super().__init__(message)
        self.least = least
        self.least_disk = least_disk

    def __reduce__(self) -> tuple[type, tuple[str, int, int]]:
        return type(self), (str(self), self.least, self.least_disk)


class ScheduleError(EbbtideError, ValueError):
    """A schedule and the loop that follows it disagree."""


class StorageError(EbbtideError, OSError):
    """Snapshots or paged values could not be written or read."""


class ResumeError(EbbtideError, ValueError):
    """A call cannot be resumed: the directory holds the run of another one, or the bits would not be the same."""


class RankError(EbbtideError, SystemExit):
    """
    Another process of the run failed.

    Where nobody catches it the process ends without a word, with the exit status 1: the one that failed has said why.

    Args:
        message: Which one, and with what.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = 1


class ProgramError(EbbtideError, RuntimeError):
    """A traced program or its plan failed a check before it ran: a defect of Ebbtide, never of the function."""
