"""The command `ebbtide`."""

from __future__ import annotations

import argparse
import importlib.metadata
import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ebbtide.budget import NO_NAME
from ebbtide.demo import burgers_report, ensemble
from ebbtide.errors import EbbtideError, StorageError
from ebbtide.storage.listing import clean, find_storages, is_of_another_user, list_storage

EXIT_VERDICT = 1
EXIT_ERROR = 2
EXIT_INTERRUPTED = 130
EXIT_UNREAD = 141
"""That of a process which `SIGPIPE` ends."""
# No more of what stays is named.
_MOST_NAMED = 8


def main(argv: Sequence[str] | None = None) -> int:
    """
    Run the command line.

    Args:
        argv: The arguments without the program's name, those of the process if None.

    Returns:
        0 if all is good, 1 if a verdict of the report is not or an entry is damaged, 2 if the input cannot be
        used or the output not be written (with a line `error: ...` on stderr), 130 if interrupted, 141 if who reads
        the output has closed it.
    """
    arguments = _parser().parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names have characters that a terminal may lack
    try:
        status = _run(arguments)
        if sys.stdout is not None:  # as it is where the shell has closed it, `>&-`: then nothing was to be printed
            sys.stdout.flush()
    except OSError as error:
        if error.filename is not None:
            raise
        return _give_up_output(error)
    return status


def _run(arguments: argparse.Namespace) -> int:
    try:
        return arguments.run(arguments)
    except (EbbtideError, ValueError) as error:
        _tell(error)
        return EXIT_ERROR
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def _give_up_output(error: OSError) -> int:
    """Return the exit code where what was printed cannot be written; who closed a pipe has read all that it wanted."""
    # What waits to be written would raise once more when the process ends.
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return EXIT_UNREAD
    _tell(OSError(f"Cannot write the output: {error.strerror or error}. Send it to another place."))
    return EXIT_ERROR


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ebbtide", description="Gradients whose memory has a plan.")
    parser.add_argument("--version", action="version", version=f"ebbtide {_version()}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    demo = commands.add_parser("demo", help="run a complete problem and report prediction beside measurement")
    problems = demo.add_subparsers(metavar="PROBLEM", required=True)
    _add_burgers(problems)
    _add_ensemble(problems)
    _add_storage(commands)
    return parser


def _add_burgers(problems: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `ebbtide demo burgers`."""
    parser = problems.add_parser(
        "burgers",
        help="gradient of 1000 steps of the 2-D viscous Burgers equation inside a memory budget",
        description="Take the gradient of a final-time misfit of the 2-D viscous Burgers equation with "
        "respect to initial velocity and viscosity inside a memory budget, and check bytes, steps and "
        "Taylor rates.",
    )
    parser.add_argument("--nodes", type=int, default=201, help="nodes per direction (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=1000, help="time steps (default: %(default)s)")
    parser.add_argument("--memory", default="64MiB", metavar="BYTES", help="memory budget (default: %(default)s)")
    parser.add_argument("--disk", default="0", metavar="BYTES", help="disk budget (default: %(default)s)")
    parser.add_argument(
        "--initial",
        type=Path,
        metavar="FILE.npy",
        help="initial velocity, a floating-point array of shape (2, nodes, nodes): component, x, y, "
        "with zeros on the boundary (default: two vortices)",
    )
    parser.add_argument(
        "--plot",
        type=Path,
        default=Path("memory.png"),
        metavar="FILE",
        help="picture of the memory timeline (default: %(default)s)",
    )
    parser.set_defaults(run=_run_burgers)


def _add_ensemble(problems: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `ebbtide demo ensemble`."""
    parser = problems.add_parser(
        "ensemble",
        help="200 small networks trained side by side on scikit-learn's digits",
        description="Train many small networks side by side, each with its own parameters and batches, and print the "
        "time of a step, what it allocates, and the accuracy; beside it torch, one by one, if it is installed.",
    )
    defaults = ensemble.Options()
    for name, text in (
        ("networks", "number of networks"), ("steps", "number of training steps"), ("batch", "rows of a step"),
        ("seed", "seed of the random numbers"),
    ):  # fmt: skip
        parser.add_argument(
            f"--{name}", type=int, default=getattr(defaults, name), metavar="N", help=f"{text} (default: %(default)s)"
        )
    parser.set_defaults(run=_run_ensemble)


def _add_storage(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `ebbtide inspect` and `ebbtide clean`."""
    place = "directory of a storage, or one in which storages have made theirs"
    parser = commands.add_parser(
        "inspect",
        help="list what storages have on disk, whose it is and what it is for",
        description="List the entries of storages on disk: key, what it is, size, place, shapes and dtypes.",
    )
    parser.add_argument("directory", type=_directory, metavar="DIR", help=place)
    parser.add_argument("--check", action="store_true", help="read all data and compare their checksums")
    parser.set_defaults(run=_run_inspect)
    parser = commands.add_parser(
        "clean",
        help="remove what storages have left on disk",
        description="Remove the directory of a storage that is not in use; in any other directory, the scratch "
        "directories of dead processes of this machine, and what the ranks of a run keep there to be resumed.",
    )
    parser.add_argument("directory", type=_directory, metavar="DIR", help=place)
    parser.set_defaults(run=_run_clean)


def _directory(name: str) -> Path:
    """Return the path of a directory that was named."""
    if not name:
        raise argparse.ArgumentTypeError(f"'' {NO_NAME}. Give the name of a directory.")
    return Path(name)


def _run_inspect(arguments: argparse.Namespace) -> int:
    status, is_any = 0, False
    for path in find_storages(arguments.directory):
        try:
            listing = list_storage(path, check=arguments.check)
        except StorageError as error:
            if path == arguments.directory or not is_of_another_user(path, error):
                is_any, status = True, EXIT_ERROR
                _tell(error)
            continue
        print(listing)
        is_any, status = True, max(status, EXIT_VERDICT if listing.damaged else 0)
    if not is_any:
        print(f"{arguments.directory}: no storage")
    return status


def _run_clean(arguments: argparse.Namespace) -> int:
    failed: list[StorageError] = []
    removed = clean(arguments.directory, failed.append)
    for path in removed:
        print(f"removed {'what a storage had left in ' if path.exists() else ''}{path}")
    for error in failed:
        _tell(error)
    left = [*find_storages(arguments.directory)] if arguments.directory.is_dir() and not failed else []
    if left:
        names = ", ".join(map(str, left[:_MOST_NAMED])) + (", ..." if len(left) > _MOST_NAMED else "")
        print(f"left {names}: a run may go on from there, or is at work; `ebbtide clean` of one by its name removes it")
    elif not removed and not failed:
        print(f"{arguments.directory}: nothing to remove")
    return EXIT_ERROR if failed else 0


def _run_burgers(arguments: argparse.Namespace) -> int:
    options = burgers_report.Options(
        nodes=arguments.nodes,
        steps=arguments.steps,
        memory=arguments.memory,
        disk=arguments.disk,
        initial=arguments.initial,
        plot=arguments.plot,
    )
    return burgers_report.run(options)


def _run_ensemble(arguments: argparse.Namespace) -> int:
    return ensemble.run(
        ensemble.Options(arguments.networks, arguments.steps, arguments.batch, arguments.seed)
    )


def _version() -> str:
    try:
        return importlib.metadata.version("ebbtide")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def _tell(error: Exception) -> None:
    with suppress(OSError):  # nobody reads it: the exit code is left
        print(f"error: {_message(error)}", file=sys.stderr)


def _message(error: Exception) -> str:
    """Return an error's message; a budget that is too small also says the least that would do."""
    least = getattr(error, "least", None)
    text = str(error)
    # The message of the library names the number itself in most cases; it is never left out here.
    if least is not None and str(least) not in text.replace(",", ""):
        text += f" The least that would do is {least} bytes: --memory {least}."
    return text


if __name__ == "__main__":
    sys.exit(main())
