"""A process that has imported everything, and forks one that runs a command whenever it is told to.

    {"words": [...], "after": 0.3, "at": 5}   run `osae WORDS`; SIGKILL after so many seconds, or at the so
                                              manieth time that a file is about to be flushed or renamed
    {"shell": "..."}                          run this

Each is a line on the standard input, and is answered by a line with the code and what was said.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from importlib import import_module


def fork(words: list[str], after: float | None = None, at: int | None = None) -> tuple[int, str]:
    with tempfile.TemporaryFile() as said:
        pid = os.fork()
        if pid == 0:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
            if at is not None:
                kill_at(at)
            from osae.cli import main

            code = main(words)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        if after is not None:
            time.sleep(after)
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        said.seek(0)
        return os.waitstatus_to_exitcode(status), said.read().decode()


def kill_at(count: int) -> None:
    left = count

    def deadly(real):
        def called(*args):
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args)

        return called

    os.fsync, os.replace = deadly(os.fsync), deadly(os.replace)


if __name__ == "__main__":
    for name in ("transformers.models.llama.modeling_llama", "transformers.modeling_gguf_pytorch_utils"):
        import_module(name)
    for name in ("osae.cli", "osae.data.harvest", "transformers.models.auto.modeling_auto"):
        import_module(name)
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if "shell" in asked:
            ran = subprocess.run(asked["shell"], shell=True, capture_output=True, text=True, check=False)
            answer = (ran.returncode, ran.stdout + ran.stderr)
        else:
            answer = fork(**asked)
        print(json.dumps(answer), flush=True)
