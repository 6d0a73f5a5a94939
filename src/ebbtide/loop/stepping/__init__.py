"""One step of a time loop: on plain values, on a tape, with its inputs and outputs."""
