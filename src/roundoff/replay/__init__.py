"""Runs steps of a training again: from tapes and snapshots in memory, or from files in another process.

Read in this order: `tape_recorder` notes what the loop does in a step (`step_tape`, `arguments`), `snapshots` keeps the
state before some steps (`state`, `swapping`, `python_state`, `generators`), `player` runs steps again from both,
`replayed_step` runs one of them with one thing changed, and `op_catcher` catches the op that made a bad value. The
folder `saved` writes a step to disk, runs it again from there, and exports its bad op as a script.
"""
