"""An engine whose device fails in a step: it says why, on its socket and in the log, and ends."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from firelane.engine_config import EngineConfig
from firelane.link.framing import FrameReader, encode
from firelane.wire.frames import Failed, FromEngine, NewRequest, Ready, Sampling, Submit
from tests.node.engine_gateway import CONFIG

ENGINE = """
import socket, sys
from firelane.engine.process import process
from firelane.errors import MachineError
from firelane.telemetry import logs
from firelane.engine_config import EngineConfig

load = process.load_executor

def load_faulty(config, progress, on_loading, program):
    executor = load(config, progress, on_loading, program)
    def wait():
        raise MachineError("the GPU failed while running a step: an illegal memory access was encountered")
    executor.wait = wait
    return executor

process.load_executor = load_faulty
logs.set_up("info")
sys.exit(process.run(socket.socket(fileno=int(sys.argv[1])), EngineConfig.from_json(sys.argv[2])))
"""


def frames(sock: socket.socket, kind: Any) -> Any:
    """The next frame of this kind."""
    reader = FrameReader(FromEngine)
    while data := sock.recv(1 << 16):
        found = [frame for frame in reader.feed(data) if isinstance(frame, kind)]
        if found:
            return found[0]
    raise AssertionError(f"the engine ended without {kind.__name__}")


def test_a_device_that_fails_ends_the_engine_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    config = EngineConfig(model_dir=tmp_path, cache_dir=tmp_path, backend="null", max_num_seqs=8)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(60)
        command = [sys.executable, "-c", ENGINE, str(theirs.fileno()), config.to_json()]
        engine = subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE, text=True)
        theirs.close()
        assert frames(ours, Ready).max_num_seqs == 8
        ours.sendall(encode(Submit([NewRequest(id=1, prompt=b"\1\0\0\0", sampling=Sampling(max_tokens=4))])))
        failed = frames(ours, Failed)
        _, said = engine.communicate(timeout=600)
    assert failed.exit_code == engine.returncode == 1
    assert failed.message.endswith("an illegal memory access was encountered")
    assert "engine_failed" in said
    assert "an illegal memory access" in said
    assert "Traceback" not in said
