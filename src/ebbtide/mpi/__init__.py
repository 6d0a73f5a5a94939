"""
Communication between the processes of a run, differentiable; needs the extra `mpi`.

Each process calls the same derivative of its own function, and communicates in it. What is differentiated is the sum
of what all ranks return, by the variables of all ranks: each rank is given the part that belongs to its own variables.
A number of which each rank has a copy is another thing than a number on each rank; who owns it is said by two
operations: `total` makes one value for all ranks of parts on each, and counts once in a derivative; `replicated` says
of a variable that its copies are one variable.
"""

from importlib.util import find_spec

if find_spec("mpi4py") is None:
    raise ModuleNotFoundError('ebbtide.mpi needs mpi4py and an MPI: pip install "ebbtide[mpi]"', name="mpi4py")

from ebbtide.mpi.distributed import distributed as distributed
from ebbtide.mpi.halo import halo_exchange as halo_exchange
from ebbtide.mpi.halo import halo_update as halo_update
from ebbtide.mpi.operations import allgather as allgather
from ebbtide.mpi.operations import allreduce as allreduce
from ebbtide.mpi.operations import alltoall as alltoall
from ebbtide.mpi.operations import bcast as bcast
from ebbtide.mpi.operations import gather as gather
from ebbtide.mpi.operations import recv as recv
from ebbtide.mpi.operations import reduce as reduce
from ebbtide.mpi.operations import replicated as replicated
from ebbtide.mpi.operations import scatter as scatter
from ebbtide.mpi.operations import send as send
from ebbtide.mpi.operations import sendrecv as sendrecv
from ebbtide.mpi.operations import total as total

__all__ = [
    "allgather", "allreduce", "alltoall", "bcast", "distributed", "gather", "halo_exchange", "halo_update", "recv",
    "reduce", "replicated", "scatter", "send", "sendrecv", "total",
]  # fmt: skip
