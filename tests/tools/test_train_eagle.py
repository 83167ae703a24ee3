"""The tool that trains EAGLE-3 heads: published layout, a loss that falls, drafts as an engine makes them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.tools.drafting_support import LAYERS, options, run, write_target, write_text
from tools import train_eagle
from tools.drafting.eagle import Cache
from tools.drafting.eagle_training import (
    HeadShape,
    default_layer_ids,
    draft,
    frequent_tokens,
    load_head,
    make_head,
    unroll,
)
from tools.drafting.export import head_tensors
from tools.drafting.target import Target, load_target

PLACES = 3
DRAFT_VOCABULARY = 60
SHAPE = HeadShape(layer_ids=(0, 1, 3), draft_vocabulary=DRAFT_VOCABULARY, intermediate=40, kv_heads=1)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    threads = torch.get_num_threads()
    made = tmp_path_factory.mktemp("eagle")
    write_target(made / "target")
    write_text(made / "text")
    yield made
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def target(directory: Path) -> Target:
    return load_target(directory / "target", "cpu")


@pytest.fixture(scope="module")
def trained(directory: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        more = ["--draft-vocabulary", DRAFT_VOCABULARY, "--intermediate", 40, "--kv-heads", 1]
        run(train_eagle.main, patch, options(directory / "target", directory / "text", directory, *more))
    return directory / "out"


def test_config_has_the_published_fields(trained: Path) -> None:
    config = json.loads((trained / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert (config["hidden_size"], config["intermediate_size"], config["head_dim"]) == (32, 40, 8)
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (4, 1)
    assert (config["vocab_size"], config["draft_vocab_size"]) == (258, DRAFT_VOCABULARY)
    assert config["eagle_aux_hidden_state_layer_ids"] == [1, 2, 3]
    assert config["rope_parameters"] == {"rope_theta": 5000.0, "rope_type": "default"}
    assert config["tie_word_embeddings"] is False


def test_weights_have_the_published_names_and_shapes(trained: Path) -> None:
    found = load_file(trained / "model.safetensors")
    layer = {
        "self_attn.q_proj": (32, 64),
        "self_attn.k_proj": (8, 64),
        "self_attn.v_proj": (8, 64),
        "self_attn.o_proj": (32, 32),
        "mlp.gate_proj": (40, 32),
        "mlp.up_proj": (40, 32),
        "mlp.down_proj": (32, 40),
        "hidden_norm": (32,),
        "input_layernorm": (32,),
        "post_attention_layernorm": (32,),
    }
    rest = {"fc": (32, 96), "norm": (32,), "lm_head": (DRAFT_VOCABULARY, 32)}
    wanted = {f"midlayer.{name}.weight": shape for name, shape in layer.items()}
    wanted |= {f"{name}.weight": shape for name, shape in rest.items()}
    assert {name: tuple(w.shape) for name, w in found.items() if name not in ("d2t", "t2d")} == wanted
    assert {w.dtype for name, w in found.items() if name in wanted} == {torch.bfloat16}


def test_maps_between_vocabularies_say_the_same(trained: Path) -> None:
    found = load_file(trained / "model.safetensors")
    assert (found["d2t"].dtype, found["t2d"].dtype) == (torch.int64, torch.bool)
    ids = torch.arange(DRAFT_VOCABULARY) + found["d2t"]
    assert len(found["t2d"]) == 258
    assert ids.tolist() == torch.nonzero(found["t2d"]).flatten().tolist()


def test_card_states_what_was_measured_and_that_the_loss_fell(trained: Path) -> None:
    card = (trained / "MODEL_CARD.md").read_text(encoding="utf-8")
    first, last = re.search(r"loss \| ([\d.]+) nats at the first step, ([\d.]+) at the end", card).groups()
    assert float(last) < 0.9 * float(first)
    for drawn in ("greedy", "temperature 1"):
        assert float(re.search(rf"\| {drawn} \| ([\d.]+) \|", card).group(1)) >= 1
    assert "--draft-vocabulary 60" in card


def test_each_step_is_that_of_a_head_that_drafts_one_token_at_a_time(target: Target) -> None:
    """The rows before, then the drafted ones on the head's own outputs: plain causal attention."""
    head = make_head(target, SHAPE, torch.arange(DRAFT_VOCABULARY), seed=5)
    tokens, row = torch.randint(258, (1, 12), generator=torch.Generator().manual_seed(1)), 5
    embedded = target.embedding[tokens]
    features = torch.randn(1, 8, 32, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        at_once = unroll(head, embedded, features, PLACES)
        read, fed = embedded[:, 1 : row + 2], features[:, : row + 1]
        for place in range(PLACES):
            last = head(read, fed, 0, Cache([], []))[:, -1]
            torch.testing.assert_close(at_once[place][:, row], last, atol=1e-5, rtol=1e-4)
            read = torch.cat((read, embedded[:, row + place + 2, None]), dim=1)
            fed = torch.cat((fed, last[:, None]), dim=1)


def test_features_are_the_streams_into_the_layers_of_the_config(target: Target) -> None:
    rows = torch.randint(258, (2, 9), generator=torch.Generator().manual_seed(4))
    seen: dict[int, torch.Tensor] = {}
    hooks = [
        layer.register_forward_pre_hook(lambda _, given, i=i: seen.__setitem__(i, given[0].float()))
        for i, layer in enumerate(target.model.model.layers)
    ]
    streams, logits = target.streams_and_logits(rows, SHAPE.layer_ids)
    for hook in hooks:
        hook.remove()
    assert torch.equal(streams, torch.cat([seen[i] for i in SHAPE.layer_ids], dim=-1))
    assert logits.shape == (2, 9, 258)


def test_right_tokens_follow_the_drawn_one(target: Target) -> None:
    """A head that says one token only is right exactly where the rows have that token."""
    head = make_head(target, SHAPE, torch.tensor([5, *range(10, 9 + DRAFT_VOCABULARY)]), seed=5)
    with torch.no_grad():
        head.lm_head.weight.zero_()
        rows = torch.randint(4, 7, (2, 20), generator=torch.Generator().manual_seed(6))
        right = draft(head, target, rows, PLACES).right
    wanted = torch.stack([rows[:, k + 2 : k + 2 + 16] == 5 for k in range(PLACES)], dim=-1)
    assert torch.equal(right, wanted)


def test_saved_weights_are_those_of_the_head(target: Target) -> None:
    head = make_head(target, SHAPE, torch.tensor(range(3, 3 + DRAFT_VOCABULARY)), seed=5)
    tensors = head_tensors(head)
    assert tensors["d2t"].tolist() == [3] * DRAFT_VOCABULARY
    assert torch.equal(tensors["lm_head.weight"], target.head[3 : 3 + DRAFT_VOCABULARY].bfloat16())


def test_a_saved_head_is_trained_on(trained: Path, target: Target) -> None:
    """With the tokens that it drafts, whatever others would be chosen."""
    saved = load_file(trained / "model.safetensors")
    head = make_head(target, SHAPE, torch.arange(DRAFT_VOCABULARY), seed=5)
    load_head(head, trained)
    again = head_tensors(head)
    assert all(torch.equal(again[name], tensor) for name, tensor in saved.items())
    other = make_head(target, replace(SHAPE, intermediate=24), torch.arange(DRAFT_VOCABULARY), seed=5)
    with pytest.raises(SystemExit, match="has no head of these sizes"):
        load_head(other, trained)


@pytest.mark.parametrize(
    ("layers", "ids"),
    [(3, (0, 1, 2)), (4, (1, 2, 3)), (6, (1, 3, 5)), (7, (2, 3, 4)), (8, (2, 4, 5)), (32, (2, 16, 29))],
)
def test_layer_ids_are_the_usual_ones_or_spread(layers: int, ids: tuple[int, ...]) -> None:
    assert default_layer_ids(layers) == ids


def test_a_model_of_two_layers_is_refused() -> None:
    with pytest.raises(SystemExit, match="has 2 layers; a head reads the streams into 3"):
        default_layer_ids(2)


def test_frequent_tokens_are_in_order_and_ties_go_to_lower_ids() -> None:
    rows = torch.tensor([[7, 7, 3], [9, 9, 2]]).numpy()
    assert frequent_tokens(rows, 12, 3).tolist() == [2, 7, 9]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--layers", 0, 1, LAYERS], r"--layers takes 3 different numbers from 0 to 3"),
        (["--layers", 1, 1, 2], r"--layers takes 3 different numbers"),
        (["--layers", -1, 1, 2], r"--layers takes 3 different numbers"),
        (["--draft-vocabulary", 1], r"--draft-vocabulary must be from 2 to the target's 258"),
        (["--heads", 3, "--kv-heads", 2], r"3 heads cannot share 2 key and value heads"),
        (["--intermediate", 0], r"--intermediate must be at least 1"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(
    directory: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, more: list[object], message: str
) -> None:
    given = options(directory / "target", directory / "text", directory, *more)
    given[given.index("--out") + 1] = tmp_path / "out"
    with pytest.raises(SystemExit, match=message):
        run(train_eagle.main, monkeypatch, given)
    assert not (tmp_path / "out").exists()


def test_help_names_every_option(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        run(train_eagle.main, monkeypatch, ["--help"])
    shown = capsys.readouterr().out
    assert all(
        name in shown for name in ("--target", "--text", "--layers", "--draft-vocabulary", "SpecForge")
    )
