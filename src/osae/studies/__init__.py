"""Studies of SAEs: compare, evaluate, order, stitch and others, one module each.

Every study accepts SAEs and activations in several forms (see `subjects`) and returns a typed result (see
`osae.results`).
"""
