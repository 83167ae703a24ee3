from __future__ import annotations

import json

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from firelane import LLM, SamplingParams
from firelane.engine.policies.fair import FairPolicy
from firelane.engine.policies.fcfs import FcfsPolicy
from firelane.errors import ModelNotFoundError, RequestError, TokenizerError, UsageError
from firelane.text.deltas import Content, Reasoning

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
TEMPLATE = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}\n{% endfor %}a:"
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 256,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
    "eos_token_id": 0,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model of bytes: each token is one byte."""
    path = tmp_path_factory.mktemp("model")
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(ALPHABET)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "config.json").write_text(json.dumps(CONFIG))
    (path / "chat_template.jinja").write_text(TEMPLATE)
    return path


@pytest.fixture
def llm(model, tmp_path):
    with LLM(str(model), backend="null", cache_dir=tmp_path, max_num_seqs=4) as llm:
        yield llm
        llm._engine.core.check_integrity()


@pytest.mark.parametrize(("name", "kind"), [("fair", FairPolicy), ("fcfs", FcfsPolicy)])
def test_scheduling_policy(model, tmp_path, name, kind):
    with LLM(str(model), backend="null", cache_dir=tmp_path, scheduling_policy=name) as llm:
        assert type(llm._engine.core.policy) is kind
    with pytest.raises(UsageError, match="is not one of fair, fcfs"):
        LLM(str(model), backend="null", scheduling_policy="lottery")


def test_a_chat_template_of_ones_own(model, tmp_path):
    (tmp_path / "own.jinja").write_text("Q: {{ messages[0].content }} A:")
    with LLM(str(model), backend="null", cache_dir=tmp_path, chat_template=tmp_path / "own.jinja") as llm:
        assert llm._files.template == "Q: {{ messages[0].content }} A:"
    with pytest.raises(TokenizerError, match="no such file"):
        LLM(str(model), backend="null", chat_template="none.jinja")


def forced(text, **more):
    """The null backend then says only this character."""
    return SamplingParams(logit_bias={ALPHABET.index(text): 100.0}, ignore_eos=True, **more)


def test_generate_many_prompts_in_order(llm):
    prompts = [f"prompt {i}" for i in range(9)]
    outputs = llm.generate(prompts, forced("x", max_tokens=5))
    assert [o.prompt for o in outputs] == prompts
    for output in outputs:
        assert output.finished
        assert output.outputs[0].text == "xxxxx"
        assert output.outputs[0].token_ids == [ALPHABET.index("x")] * 5
        assert output.outputs[0].finish_reason == "length"


def test_prompt_forms(llm):
    params = forced("y", max_tokens=2)
    ids = llm.generate("ab", params)[0].prompt_token_ids
    assert llm.generate(ids, params)[0].prompt is None
    assert [o.prompt_token_ids for o in llm.generate([ids, ids], params)] == [ids, ids]
    assert llm.generate([], params) == []


def test_seed_decides(llm):
    params = SamplingParams(seed=3, max_tokens=20, n=2, ignore_eos=True)
    first, again = llm.generate(["a", "b"], params), llm.generate("a", params)
    assert first[0].outputs[0].token_ids == again[0].outputs[0].token_ids
    assert first[0].outputs[0].token_ids != first[0].outputs[1].token_ids
    fresh = SamplingParams(max_tokens=20, ignore_eos=True)
    assert (
        llm.generate("a", fresh)[0].outputs[0].token_ids != llm.generate("a", fresh)[0].outputs[0].token_ids
    )


def test_stop_token(llm):
    output = llm.generate("a", SamplingParams(logit_bias={0: 100.0}))[0].outputs[0]
    assert (output.text, output.token_ids, output.finish_reason, output.stop_reason) == ("", [0], "stop", 0)


def test_stop_string_ends_and_is_cut(llm):
    output = llm.generate("a", forced("z", max_tokens=50, stop="zzz"))[0].outputs[0]
    assert (output.text, output.finish_reason) == ("", "stop")
    assert len(output.token_ids) == 3
    held = llm.generate("a", forced("z", max_tokens=50, stop=["zzz"], min_tokens=4))[0].outputs[0]
    assert held.text.startswith("zzzz")


def test_stream_gives_the_same_text(llm):
    params = SamplingParams(seed=5, max_tokens=40, ignore_eos=True)
    assert "".join(llm.stream("abc", params)) == llm.generate("abc", params)[0].outputs[0].text


def test_a_stream_that_is_left_frees_its_sequence(llm):
    stream = llm.stream("abc", forced("q", max_tokens=None))
    assert next(stream) == "q"
    stream.close()
    assert llm.generate("a", forced("r", max_tokens=2))[0].outputs[0].text == "rr"
    llm._engine.core.step()
    assert not llm._engine.core.table.live()


def test_two_streams_at_once(llm):
    first, second = (llm.stream("abc", forced(c, max_tokens=4)) for c in "st")
    pairs = list(zip(first, second, strict=False))
    assert "".join(a for a, _ in pairs) == "ssss"
    assert "".join(b for _, b in pairs).startswith("tt")
    first.close()
    second.close()


def test_chat_uses_the_template(llm):
    output = llm.chat([{"role": "user", "content": "hi"}], forced("k", max_tokens=2))[0]
    assert llm._tokenizer.decode(output.prompt_token_ids) == "u:hi\na:"
    assert output.outputs[0].text == "kk"
    two = llm.chat([[{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}]], forced("k"))
    assert len(two) == 2
    assert "".join(llm.stream_chat([{"role": "user", "content": "hi"}], forced("k", max_tokens=2))) == "kk"
    with pytest.raises(RequestError, match="messages"):
        llm.chat([{"content": "no role"}])


def test_reasoning_apart_from_the_answer(model, tmp_path):
    (tmp_path / "thinks.jinja").write_text(
        TEMPLATE + "{% if add_generation_prompt %}<think>\n{% endif %}"
        "{% if false %}{{ message.content.split('</think>')[-1] }}{% endif %}"
    )
    said = SamplingParams(regex="hm\n</think>\n\nyes", max_tokens=None)
    hi = [{"role": "user", "content": "hi"}]
    with LLM(str(model), backend="null", cache_dir=tmp_path, chat_template=tmp_path / "thinks.jinja") as llm:
        pieces = list(llm.stream_deltas(hi, said))
        whole = "".join(llm.stream_chat(hi, said))
    assert "".join(p.text for p in pieces if isinstance(p, Reasoning)).strip() == "hm"
    assert "".join(p.text for p in pieces if isinstance(p, Content)) == "yes"
    assert whole == "hm\n</think>\n\nyes"


def test_logprobs(llm):
    output = llm.generate("abcd", forced("m", max_tokens=3, logprobs=2, prompt_logprobs=1))[0]
    token = ALPHABET.index("m")
    assert len(output.outputs[0].logprobs) == 3
    assert output.outputs[0].logprobs[0][token].decoded_token == "m"
    assert len(output.outputs[0].logprobs[0]) == 2
    assert output.prompt_logprobs[0] is None
    assert [next(iter(e)) for e in output.prompt_logprobs[1:]] == output.prompt_token_ids[1:]


def test_cached_tokens_are_reported(llm):
    prompt = "a long prompt that fills several blocks of the cache"
    params = forced("x", max_tokens=1)
    assert llm.generate(prompt, params)[0].num_cached_tokens == 0
    assert llm.generate(prompt, params)[0].num_cached_tokens == 48


def test_too_long_a_prompt_raises_and_leaves_nothing(llm):
    with pytest.raises(RequestError, match="128 tokens"):
        llm.generate(["ok", "x" * 200], forced("x"))
    assert llm.generate("ok", forced("x", max_tokens=1))[0].outputs[0].text == "x"


def test_rest_of_the_context(llm):
    output = llm.generate("abcd", forced("x", max_tokens=None))[0]
    assert len(output.outputs[0].token_ids) == 124


def test_wrong_options(model, tmp_path):
    with pytest.raises(UsageError, match="no option 'max_num_seq'"):
        LLM(str(model), max_num_seq=3)
    with pytest.raises(ModelNotFoundError):
        LLM(str(tmp_path / "nowhere" / "at all"))


def test_a_tokenizer_of_another_model_is_refused_before_the_load(model, tmp_path, monkeypatch):
    for name in ("tokenizer.json", "chat_template.jinja"):
        (tmp_path / name).symlink_to(model / name)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"vocab_size": 255}))
    monkeypatch.setattr("firelane.llm.local.load_executor", None)
    with pytest.raises(TokenizerError, match="256 ids but the model's vocabulary has 255"):
        LLM(str(tmp_path), backend="null", cache_dir=tmp_path)


def test_close_twice(model, tmp_path):
    llm = LLM(str(model), backend="null", cache_dir=tmp_path)
    llm.close()
    llm.close()


def test_embed(llm):
    [whole] = llm.embed("some text")
    assert whole.shape == (CONFIG["hidden_size"],)
    assert np.linalg.norm(whole) == pytest.approx(1, rel=1e-6)
    ids = llm.generate("some text")[0].prompt_token_ids
    assert (llm.embed([ids, "other"])[0] == whole).all()
    raw = llm.embed(["some text"], normalize=False)[0]
    np.testing.assert_allclose(raw / np.linalg.norm(raw), whole, rtol=1e-6)
    states = [llm.embed(ids[: n + 1], normalize=False)[0] for n in range(len(ids))]
    mean = llm.embed("some text", pooling="mean", normalize=False)[0]
    np.testing.assert_allclose(mean, np.mean(states, axis=0, dtype=np.float64), rtol=1e-6)
    assert llm.embed([]) == []


def test_embed_what_cannot_be_served(llm):
    with pytest.raises(RequestError, match="the prompt has 129 tokens"):
        llm.embed([[1], [1] * 129])
    with pytest.raises(RequestError, match="0 bytes"):
        llm.embed("")
    assert len(llm.embed([1] * 128)) == 1


def test_structured_output(llm):
    """The null backend would say anything: what it says matches all the same."""
    prompts = [f"prompt {i}" for i in range(6)]
    params = SamplingParams(json_schema={"enum": ["one", "two"]}, max_tokens=20)
    for output in llm.generate(prompts, params):
        assert json.loads(output.outputs[0].text) in ("one", "two")
        assert output.outputs[0].finish_reason == "stop"
        assert output.outputs[0].stop_reason is None
    for params in (SamplingParams(regex="[ab]{5}"), SamplingParams(grammar='start: ("a" | "b")~5')):
        assert set(llm.generate("x", params)[0].outputs[0].text) <= set("ab")
        text = "".join(llm.stream("x", params))
        assert len(text) == 5


def test_a_grammar_that_cannot_be_served(llm):
    with pytest.raises(RequestError, match="the regular expression cannot be used: unclosed group"):
        llm.generate("x", SamplingParams(regex="(("))
    with pytest.raises(UsageError, match="regex and lark are both given"):
        llm.generate("x", SamplingParams(regex="a", grammar='start: "a"'))
    assert llm.generate("a", forced("r", max_tokens=2))[0].outputs[0].text == "rr"


def test_the_environment_of_a_container(model, tmp_path, monkeypatch, caplog):
    """Variables that Kubernetes sets for a Service of our name stop nothing; an unknown one is reported."""
    monkeypatch.setenv("FIRELANE_PORT", "tcp://10.0.0.1:8000")
    monkeypatch.setenv("FIRELANE_REPLICAS", "3")
    with LLM(str(model), backend="null", cache_dir=tmp_path):
        assert [r.getMessage() for r in caplog.records if "environment" in r.getMessage()] == [
            "environment variable FIRELANE_REPLICAS means nothing here"
        ]
