"""
The differentiable time loop.

`timeloop` is the call, `run` follows its schedule, and `room` keeps its budget. Beneath them, imports going down only:
`derivatives` (forward mode, pairs, batches), `resuming` (the journal), `measuring` (the first step, and the first
plan), `holding` (snapshots, and what is given up), `planning` (from sizes and costs to a schedule), `stepping` (one
step, taped or not) and `values` (what state, inputs and code are made of).
"""
