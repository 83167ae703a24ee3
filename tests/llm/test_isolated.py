"""The engine of an LLM in a process of its own: the same answers, its rights, its end."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from firelane import LLM, SamplingParams
from firelane.errors import (
    CacheError,
    EngineDeadError,
    FirelaneError,
    MachineError,
    RequestError,
    StoreError,
    UsageError,
)
from firelane.llm import isolated
from firelane.sandbox import seccomp
from firelane.sandbox.system import this_machine
from firelane.wire.frames import Failed

ROOT = Path(__file__).parents[2]
MACHINE = this_machine()
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 256,
    "max_position_embeddings": 1 << 20,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
}
FOREVER = 1 << 19
GREEDY = SamplingParams(temperature=0, max_tokens=24)
MANNERS = {
    "greedy": GREEDY,
    "seeded": SamplingParams(seed=11, n=3, max_tokens=16),
    "logprobs": SamplingParams(temperature=0, max_tokens=6, logprobs=3, prompt_logprobs=2),
    "stop strings": SamplingParams(seed=2, max_tokens=40, stop=["e", "\n"]),
    "a regular expression": SamplingParams(seed=3, max_tokens=30, regex="[a-f]{4,9}"),
    "a schema": SamplingParams(seed=4, max_tokens=40, json_schema={"enum": ["one", "two"]}),
    "penalties and biases": SamplingParams(
        seed=5, max_tokens=16, repetition_penalty=1.3, logit_bias={9: 4.0}, min_p=0.05
    ),
}


@pytest.fixture(scope="module")
def here(cache_dir: Path) -> Iterator[LLM]:
    with LLM(cache_dir=cache_dir, max_num_seqs=4) as llm:
        yield llm


@pytest.fixture(scope="module")
def apart(cache_dir: Path, here: LLM) -> Iterator[LLM]:
    """After `here`, which has compiled."""
    del here
    with LLM(cache_dir=cache_dir, max_num_seqs=4, isolated=True) as llm:
        yield llm


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that never ends by itself."""
    path = tmp_path_factory.mktemp("talker")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "config.json").write_text(json.dumps(CONFIG))
    (path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    return path


@pytest.mark.parametrize("manner", MANNERS)
def test_the_same_answers(here: LLM, apart: LLM, manner: str) -> None:
    prompts = ["import os\n", "def parse(line):", "class A"]
    expected = here.generate(prompts, MANNERS[manner])
    found = apart.generate(prompts, MANNERS[manner])
    assert [run.outputs for run in found] == [run.outputs for run in expected]
    assert [run.prompt_logprobs for run in found] == [run.prompt_logprobs for run in expected]
    assert all(output.token_ids for run in found for output in run.outputs)


def joined(deltas: Iterable[Any]) -> dict[str, str]:
    """The text of each kind of delta."""
    texts: defaultdict[str, str] = defaultdict(str)
    for delta in deltas:
        texts[type(delta).__name__] += delta.text
    return dict(texts)


def test_the_same_text_in_pieces_chats_and_vectors(here: LLM, apart: LLM) -> None:
    hello = [{"role": "user", "content": "write add(a, b)"}]
    # Joined: how much comes at a time follows from drafts, and those from the times of steps.
    assert "".join(apart.stream("def f(", GREEDY)) == "".join(here.stream("def f(", GREEDY))
    assert joined(apart.stream_deltas(hello, GREEDY)) == joined(here.stream_deltas(hello, GREEDY))
    assert apart.chat(hello, GREEDY)[0].outputs == here.chat(hello, GREEDY)[0].outputs
    for ours, theirs in zip(
        apart.embed(["a", "b c"], pooling="mean"), here.embed(["a", "b c"], pooling="mean"), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


def test_streams_beside_each_other_and_one_that_is_left(here: LLM, apart: LLM) -> None:
    whole = here.generate(["a =", "b ="], GREEDY)
    pairs = list(zip(apart.stream("a =", GREEDY), apart.stream("b =", GREEDY), strict=False))
    assert whole[0].outputs[0].text.startswith("".join(a for a, _ in pairs)[:5])
    left = apart.stream("def f(", SamplingParams(max_tokens=None, ignore_eos=True))
    next(left)
    left.close()
    assert apart.generate("a =", GREEDY)[0].outputs == whole[0].outputs


def test_what_cannot_be_served_is_told_and_leaves_nothing(here: LLM, apart: LLM) -> None:
    for wrong in (
        lambda llm: llm.generate("x" * 9000, GREEDY),
        lambda llm: llm.generate("a", SamplingParams(regex="((")),
    ):
        told = []
        for llm in (here, apart):
            with pytest.raises(RequestError) as caught:
                wrong(llm)
            told.append(str(caught.value))
        assert told[0] == told[1] != ""
    assert apart.generate("a =", GREEDY)[0].outputs == here.generate("a =", GREEDY)[0].outputs


@pytest.mark.parametrize(
    "options",
    [{"max_model_len": 1 << 30}, {"backend": "cuda"}, {"weights": "no"}],
    ids=lambda o: next(iter(o)),
)
def test_errors_of_a_load_are_those_of_one_here(cache_dir: Path, options: dict[str, Any]) -> None:
    caught: list[FirelaneError] = []
    for apart in (False, True):
        with pytest.raises(FirelaneError) as error:
            LLM(cache_dir=cache_dir, isolated=apart, **options)
        caught.append(error.value)
    assert (type(caught[0]), str(caught[0])) == (type(caught[1]), str(caught[1]))


def test_a_load_tells_its_progress(cache_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "kernels").symlink_to(cache_dir / "kernels")
    done_of: dict[str, float] = {}

    def progress(stage: str, done: float, total: float, unit: str, /) -> None:
        del unit
        done_of[stage] = done / total

    LLM(cache_dir=tmp_path, isolated=True, progress=progress).close()
    assert done_of["pack"] == 1


def test_an_engine_that_is_killed_ends_what_ran(talker: Path, tmp_path: Path) -> None:
    llm = LLM(str(talker), backend="null", cache_dir=tmp_path, isolated=True)
    stream = llm.stream("a", SamplingParams(max_tokens=FOREVER))
    next(stream)
    pid = llm._engine.pid
    os.kill(pid, signal.SIGKILL)
    for told in (False, True):
        with pytest.raises(EngineDeadError, match=f"engine process {pid} was killed by SIGKILL"):
            llm.generate("b") if told else list(stream)
    llm.close()


def test_close_ends_the_process(talker: Path, tmp_path: Path) -> None:
    llm = LLM(str(talker), backend="null", cache_dir=tmp_path, isolated=True)
    stream = llm.stream("a", SamplingParams(max_tokens=FOREVER))
    next(stream)
    llm.close()
    llm.close()
    assert llm._engine._child.code == 0
    with pytest.raises(ProcessLookupError):
        os.kill(llm._engine.pid, 0)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Have Ctrl-C reach what the test starts: a shell has what it runs in the background ignore it, and so
    do the processes below."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@contextmanager
def _firelane(*arguments: str, cache: Path, cwd: Path) -> Generator[subprocess.Popen[bytes]]:
    """Killed where the test fails before its end."""
    environ = {
        **os.environ,
        "FIRELANE_CACHE_DIR": str(cache),
        "HF_TOKEN": "secret",
        "OPENAI_API_KEY": "secret",
    }
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "firelane", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**environ, "PYTHONPATH": str(ROOT)},
        cwd=cwd,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _engine_of(process: subprocess.Popen[bytes]) -> Path:
    """Its directory in /proc, when it has loaded the model."""
    for children in Path(f"/proc/{process.pid}/task").glob("*/children"):
        for pid in children.read_text().split():
            found = Path("/proc", pid)
            if b"firelane.engine\0" in (found / "cmdline").read_bytes():
                return found
    raise AssertionError("there is no engine")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_generate_runs_an_engine_without_rights_and_tells_its_end(talker: Path, tmp_path: Path) -> None:
    options = ("--backend", "null", "--max-tokens", str(FOREVER))
    with _firelane(
        "generate", str(talker), "--prompt", "a", *options, cache=tmp_path, cwd=tmp_path
    ) as process:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], 120)[0]
        engine = _engine_of(process)
        if MACHINE is not None and seccomp.has_filters(MACHINE):
            assert "\nSeccomp:\t2\n" in (engine / "status").read_text()
        environ = (engine / "environ").read_bytes()
        assert b"secret" not in environ
        assert b"FIRELANE_CACHE_DIR" in environ
        assert (engine / "fd/0").readlink() == Path(os.devnull)
        os.kill(int(engine.name), signal.SIGKILL)
        _, error = process.communicate(timeout=120)
    assert process.returncode == 1
    assert (
        error.decode()
        == f"firelane: error: engine process {engine.name} was killed by SIGKILL: start again\n"
    )


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ctrl_c_ends_generate_and_its_engine(talker: Path, tmp_path: Path) -> None:
    options = ("--backend", "null", "--max-tokens", str(FOREVER))
    with _firelane(
        "generate", str(talker), "--prompt", "a", *options, cache=tmp_path, cwd=tmp_path
    ) as process:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], 120)[0]
        engine = _engine_of(process)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=120)
    assert (process.returncode, error) == (130, b"")
    assert not engine.exists()


@pytest.mark.parametrize(
    "command", [("generate", "--prompt", "a", "--max-tokens", "2"), ("chat",)], ids=lambda c: c[0]
)
def test_modules_beside_a_model_are_not_run(talker: Path, tmp_path: Path, command: tuple[str, ...]) -> None:
    """In the directory of a model from elsewhere lies what Firelane imports by name."""
    for name in ("msgspec", "numpy", "json"):
        (tmp_path / f"{name}.py").write_text("open('ran', 'w').close()\nraise SystemExit(3)\n")
    options = (str(talker), "--backend", "null")
    with _firelane(command[0], *options, *command[1:], cache=tmp_path / "cache", cwd=tmp_path) as process:
        answer, error = process.communicate(b"" if command[0] == "generate" else b"/exit\n", timeout=120)
    assert (process.returncode, error) == (0, b"")
    assert answer or command[0] == "chat"
    assert not (tmp_path / "ran").exists()


def test_an_engine_process_starts_before_anything_heavy_is_loaded() -> None:
    program = (
        "import sys, firelane.llm, firelane.llm.isolated\n"
        "heavy = {'numpy', 'firelane.engine', 'firelane.backends'}\n"
        "heavy |= {'firelane.weights.checkpoints.checkpoint'}\n"
        "print('LOADED', sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout == "LOADED []\n"


def test_an_engine_that_hangs_is_killed(
    talker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolated, "LOOK_S", 0.1)
    with LLM(str(talker), backend="null", cache_dir=tmp_path, isolated=True) as llm:
        stream = llm.stream("a", SamplingParams(max_tokens=FOREVER))
        next(stream)
        os.kill(llm._engine.pid, signal.SIGSTOP)
        monkeypatch.setattr(isolated, "SILENCE_S", 1.0)
        with pytest.raises(EngineDeadError, match="shows no life for 1 s"):
            list(stream)
        assert llm._engine._child.code == -signal.SIGKILL


@pytest.mark.parametrize(
    ("failed", "kind"),
    [
        (Failed("no", 1, "CacheError"), CacheError),
        (Failed("no", 1, "StoreError"), StoreError),
        (Failed("no", 2, "os"), UsageError),
        (Failed("no", 1, "STEERING"), MachineError),
        (Failed("no", 1), MachineError),
    ],
)
def test_errors_of_an_engine_keep_their_class(failed: Failed, kind: type[FirelaneError]) -> None:
    error = isolated._error(failed)
    assert (type(error), str(error), error.exit_code) == (kind, "no", failed.exit_code)
