from __future__ import annotations

import json
import math
import os

import pytest
import tokenizers

from firelane.errors import RequestError, TokenizerError
from firelane.text.model_files import ModelTextFiles, read_model_files
from firelane.text.prompt import PromptBuilder
from firelane.text.tokens.tokenizer import Tokenizer, load_tokenizer


def write(folder, **files):
    for name, value in files.items():
        stem, _, suffix = name.rpartition("_")
        text = value if isinstance(value, str) else json.dumps(value)
        (folder / f"{stem}.{suffix}").write_text(text)


def test_empty_directory(tmp_path):
    files = read_model_files(tmp_path)
    assert (files.template, files.eos_ids, files.specials, files.defaults) == (None, (), {}, {})


def test_places_of_the_template_in_order(tmp_path):
    write(tmp_path, tokenizer_config_json={"chat_template": "c"})
    assert read_model_files(tmp_path).template == "c"
    write(tmp_path, chat_template_json={"chat_template": "b"})
    assert read_model_files(tmp_path).template == "b"
    write(tmp_path, chat_template_jinja="a")
    assert read_model_files(tmp_path).template == "a"


def test_a_template_in_place_of_the_models_own(tmp_path):
    write(tmp_path, chat_template_jinja="a", other_jinja="b")
    assert read_model_files(tmp_path, tmp_path / "other.jinja").template == "b"
    with pytest.raises(TokenizerError, match=r"none\.jinja: no such file; give the file of a Jinja"):
        read_model_files(tmp_path, tmp_path / "none.jinja")


def test_specials_eos_and_defaults(tmp_path):
    write(
        tmp_path,
        tokenizer_config_json={"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": None},
        config_json={"eos_token_id": 2},
    )
    files = read_model_files(tmp_path)
    assert files.specials == {"bos_token": "<s>", "eos_token": "</s>"}
    assert files.eos_ids == (2,)
    write(
        tmp_path,
        generation_config_json={"eos_token_id": [3, 4], "temperature": 0.6, "top_k": 20, "do_sample": True},
    )
    files = read_model_files(tmp_path)
    assert files.eos_ids == (3, 4)
    assert files.defaults == {"temperature": 0.6, "top_k": 20}


@pytest.mark.parametrize("text", ["{", "[]", '"x"', "[" * 100_000])
def test_damaged_json(tmp_path, text):
    write(tmp_path, config_json=text)
    with pytest.raises(TokenizerError, match=r"config\.json"):
        read_model_files(tmp_path)


def test_template_of_a_wrong_type(tmp_path):
    write(tmp_path, tokenizer_config_json={"chat_template": 5})
    with pytest.raises(TokenizerError, match="not a text"):
        read_model_files(tmp_path)


@pytest.mark.parametrize("name", ["chat_template.jinja", "config.json", "generation_config.json"])
def test_files_that_cannot_be_read(tmp_path, name):
    (tmp_path / name).write_bytes(b"\xff\xfe")
    with pytest.raises(TokenizerError, match=rf"{name} is not UTF-8 text"):
        read_model_files(tmp_path)
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    with pytest.raises(TokenizerError, match=rf"{name} cannot be read"):
        read_model_files(tmp_path)
    (tmp_path / name).rmdir()
    os.mkfifo(tmp_path / name)
    with pytest.raises(TokenizerError, match=rf"{name} cannot be read .not a regular file"):
        read_model_files(tmp_path)
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("/dev/zero")
    with pytest.raises(TokenizerError, match=rf"{name} cannot be read .not a regular file"):
        read_model_files(tmp_path)
    (tmp_path / name).unlink()
    with (tmp_path / name).open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(TokenizerError, match=rf"{name} cannot be read .larger than"):
        read_model_files(tmp_path)


@pytest.mark.parametrize("value", ["2", [2, "x"], -1, True, 2**40, {"id": 2}])
def test_ends_that_are_no_token_ids(tmp_path, value):
    write(tmp_path, generation_config_json={"eos_token_id": value})
    with pytest.raises(TokenizerError, match="eos_token_id = "):
        read_model_files(tmp_path)


def test_no_end_in_the_generation_config_leaves_that_of_the_config(tmp_path):
    write(tmp_path, generation_config_json={"eos_token_id": None}, config_json={"eos_token_id": [2]})
    assert read_model_files(tmp_path).eos_ids == (2,)


def test_named_templates_of_a_wrong_shape(tmp_path):
    write(tmp_path, tokenizer_config_json={"chat_template": ["x", {"name": "other"}]})
    assert read_model_files(tmp_path).template is None


def test_tokenizer_missing_or_damaged(tmp_path):
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json in"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": 1}')
    with pytest.raises(TokenizerError, match="is not a tokenizer") as error:
        load_tokenizer(tmp_path)
    assert "\n" not in str(error.value)


BAD = {"temperature": -1, "top_p": 5, "top_k": math.nan, "min_p": "0.1", "repetition_penalty": 10**400}


@pytest.mark.parametrize("name", BAD)
def test_defaults_that_no_request_could_be_served_with(tmp_path, caplog, name):
    write(tmp_path, generation_config_json={"temperature": 0.5, "top_p": 0.5, "top_k": 5} | {name: BAD[name]})
    read = read_model_files(tmp_path).defaults
    assert read == {k: v for k, v in {"temperature": 0.5, "top_p": 0.5, "top_k": 5}.items() if k != name}
    (line,) = caplog.messages
    assert f" {name}=" in line
    assert len(line) < 300 + len(str(tmp_path))


def test_ends_that_the_vocabulary_does_not_have(tmp_path, caplog):
    write(tmp_path, generation_config_json={"eos_token_id": [3, 50]}, config_json={"vocab_size": 50})
    assert read_model_files(tmp_path).eos_ids == (3,)
    assert "eos_token_ids_ignored" in caplog.text


def test_more_ends_than_a_sequence_can_have():
    core = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0}, []))
    with pytest.raises(TokenizerError, match="17 tokens would end an answer: at most 16"):
        PromptBuilder(Tokenizer(core), ModelTextFiles(eos_ids=tuple(range(17))))


@pytest.mark.parametrize("make", ["pipe", "device", "large"])
def test_a_tokenizer_that_is_no_file(tmp_path, make):
    path = tmp_path / "tokenizer.json"
    if make == "pipe":
        os.mkfifo(path)
    elif make == "device":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as file:
            file.truncate(1 << 40)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json cannot be read"):
        load_tokenizer(tmp_path)


def test_long_messages_are_cut():
    error = RequestError("begin " + "x" * 100_000 + " end", param="y")
    assert len(str(error)) < 2100
    assert str(error).startswith("begin x")
    assert str(error).endswith("x end")
    assert error.param == "y"
