"""Memory that an engine does not take."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

RESIDENT = (
    "import re\n"
    "def resident():\n"
    "    return int(re.search(r'VmRSS:\\s+(\\d+)', open('/proc/self/status').read())[1]) >> 10\n"
)
A_THREAD_FREES = RESIDENT + (
    "import threading\n"
    "from firelane.heap import give_back_freed, share_one_heap\n"
    "share_one_heap()\n"
    "large = bytes(30 << 20)\n"
    "del large\n"
    "def work():\n"
    "    kept = [bytes([i % 256]) * 3000 for i in range(10000)]\n"
    "thread = threading.Thread(target=work)\n"
    "before = resident()\n"
    "thread.start(); thread.join(); give_back_freed()\n"
    "print(resident() - before)\n"
)
AN_ENGINE = (
    "import firelane.engine.__main__ as engine\n"
    "assert engine.main([]) == 2\n"
    "import firelane.engine.process.process, hashlib, hmac\n"
    "assert 'libcrypto' not in open('/proc/self/maps').read()\n"
    "print(hashlib.sha256(b'abc').hexdigest()[:8], hmac.new(b'key', b'abc', 'sha256').hexdigest()[:8])\n"
)


def output_of(program: str) -> str:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_what_a_thread_freed_goes_back() -> None:
    """Also after a large block was freed, from when on the C library keeps more."""
    assert int(output_of(A_THREAD_FREES)) < 10


def test_no_openssl() -> None:
    """FIPS 180-4's example, and what OpenSSL makes of the same."""
    assert output_of(AN_ENGINE).split() == ["ba7816bf", "9c196e32"]
