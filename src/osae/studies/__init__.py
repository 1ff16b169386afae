"""What a user asks of SAEs: compare, evaluate, order, stitch and convert, one module each.

Every study takes what people have (see `subjects`) and returns a typed result (see `osae.results`).
"""
