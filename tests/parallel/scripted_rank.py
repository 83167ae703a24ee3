"""A rank that does what RANK_SCRIPT says, step by step, and then waits for the end of its socket. It loads
nothing of Firelane, so that it starts at once."""

import os
import signal
import socket
import sys
import time

sock = socket.socket(fileno=int(sys.argv[1]))


def receive(count: int) -> bytes:
    return sock.recv(count, socket.MSG_WAITALL)


for step in os.environ["RANK_SCRIPT"].split():
    action, _, what = step.partition(":")
    if action == "say":
        sock.sendall(bytes.fromhex(what))
    elif action == "task":
        receive(int.from_bytes(receive(4), "little"))
    elif action == "order":
        receive(8)
    elif action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif action == "exit":
        sys.exit(int(what))
    elif action == "hang":
        time.sleep(600)
while sock.recv(1 << 16):
    pass
