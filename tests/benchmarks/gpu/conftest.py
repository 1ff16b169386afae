import os

os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports triton: its programs run on the CPU
