"""Run one bench, or all: `python -m bench [NAME ...] [--quick]`."""

import argparse
import importlib

from bench.measure import machine

NAMES = (
    "dots", "mlp", "rnn", "fanout", "relu", "overhead", "budget", "timeloop", "planner",
    "programs", "calling", "ensembles", "larger_nets", "lenet", "schedules", "storage",
    "hidden", "ranks", "scaling", "faults", "adjoints", "linearize", "burgers_machine", "recurrent", "inner_loops",
    "monotone",
)  # fmt: skip

parser = argparse.ArgumentParser(prog="python -m bench", description="The measured claims of Ebbtide.")
parser.add_argument("names", nargs="*", metavar="NAME", help=f"one or several of {', '.join(NAMES)}; all by default")
parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs, and measures nothing")
arguments = parser.parse_args()
if unknown := [name for name in arguments.names if name not in NAMES]:
    parser.error(f"there is no bench {unknown[0]!r}; there are {', '.join(NAMES)}")
print(machine() + "\n")
for name in arguments.names or NAMES:
    importlib.import_module(f"bench.{name}").main(quick=arguments.quick)
