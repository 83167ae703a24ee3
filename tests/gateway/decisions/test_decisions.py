"""/v1/systemone and /v1/decisions on the scripted engine."""

from __future__ import annotations

import array
import json
import math
import threading
from pathlib import Path

import pytest

from firelane.text.model_files import read_model_files
from tests.text.toy_model import write_model

STATE = "The parcel has not arrived. " * 3
NOUL = {"type": "noul", "instructions": "Is it late?"}
CHOICE = {"type": "choice", "instructions": "Which?", "criteria": {"post": "by post", "shop": None}}
SCORE = {"type": "score", "instructions": "How angry?", "criteria": ["calm", "cross", "furious"]}


def logprobs(prompt: list[int], ids: list[int]) -> list[float]:
    """Behind each prompt other ones; of a token always the same."""
    return [-0.5 - ((7 * sum(prompt) + 3 * len(prompt) + 11 * i) % 29) / 8 for i in ids]


@pytest.fixture
def deciding(service):
    service.run(setattr, service.engine, "label_logprobs", logprobs)
    service.run(setattr, service.engine, "max_model_len", 4096)
    service.call(service.restart())
    return service


def systemone(service, questions, **fields):
    return service.http.post("/v1/systemone", json={"state": STATE, "questions": questions, **fields})


def decide(service, questions, **fields):
    answer = systemone(service, questions, **fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def prompts(service) -> list[list[int]]:
    return [array.array("i", request.prompt).tolist() for request in service.engine.submitted]


def label_odds(service, prompt: list[int], labels: list[str]) -> list[float]:
    """By the rule: the sum over a label's tokens."""
    sums = []
    for label in labels:
        ids = service.ids(label)
        sums.append(sum(logprobs([*prompt, *ids[:i]], [token])[0] for i, token in enumerate(ids)))
    weights = [math.exp(one) for one in sums]
    return [one / sum(weights) for one in weights]


def test_each_kind(deciding):
    made = decide(deciding, {"late": NOUL, "how": CHOICE, "anger": SCORE}, model="toy")
    assert made["model"] == "toy"
    assert list(made["answers"]) == ["late", "how", "anger"]
    late, how, anger = made["answers"].values()
    assert late["type"] == "noul"
    assert 0 < late["noul"] < 1
    assert how["choice"] == max(how["probabilities"], key=how["probabilities"].get)
    assert list(how["probabilities"]) == ["post", "shop"]
    assert how["confidence"] == pytest.approx(2 * max(how["probabilities"].values()) - 1)
    assert anger["legend"] == {"0": "calm", "1": "cross", "2": "furious"}
    assert anger["score"] == pytest.approx(sum(int(k) * p for k, p in anger["probabilities"].items()))
    for answer in (how, anger):
        assert math.fsum(answer["probabilities"].values()) == pytest.approx(1)
        assert 0 <= answer["label_mass"] <= 1


def test_probabilities_are_those_of_the_labels_tokens(deciding):
    made = decide(deciding, {"how": CHOICE, "late": NOUL})
    asked = {}
    for prompt in prompts(deciding):
        text = deciding.core.decode(prompt, skip_special_tokens=False)
        for name in ("Which?", "late?"):
            if name in text and len(prompt) < len(asked.get(name, [0] * 9999)):
                asked[name] = prompt  # the shortest: without tokens of a label
    how = made["answers"]["how"]["probabilities"]
    assert list(how.values()) == pytest.approx(label_odds(deciding, asked["Which?"], ["A", "B"]))
    late = label_odds(deciding, asked["late?"], ["yes", "no"])
    assert made["answers"]["late"]["noul"] == pytest.approx(late[0])


def test_all_questions_share_the_state_and_the_first_goes_ahead(deciding):
    questions = {f"q{i}": {**NOUL, "instructions": f"Is it {i}?"} for i in range(64)}
    made = decide(deciding, questions)
    texts = [deciding.core.decode(prompt, skip_special_tokens=False) for prompt in prompts(deciding)]
    shared = texts[0].index("Question: ")
    assert STATE in texts[0][:shared]
    assert {text[:shared] for text in texts} == {texts[0][:shared]}
    assert list(made["answers"]) == list(questions)
    assert made["usage"]["output_tokens"] == 0
    once = len(prompts(deciding)[0])
    assert made["usage"]["input_tokens"] < once + 63 * (once - len(deciding.ids(STATE)))


def test_the_others_wait_for_the_first(deciding):
    deciding.run(setattr, deciding.engine, "held", True)
    questions = {f"q{i}": NOUL for i in range(5)}
    body = json.dumps({"state": STATE, "questions": questions})
    answers = []
    thread = threading.Thread(
        target=lambda: answers.append(deciding.http.post("/v1/systemone", content=body))
    )
    thread.start()
    deciding.wait_for(lambda: bool(deciding.engine.submitted))
    assert len(deciding.engine.submitted) == 1
    deciding.run(deciding.engine.step)
    deciding.wait_for(lambda: len(deciding.engine.submitted) > 1)
    deciding.run(setattr, deciding.engine, "held", False)
    deciding.run(deciding.engine.step_on)
    thread.join()
    assert answers[0].status_code == 200


def test_the_state_goes_ahead_alone_where_the_model_keeps_recurrent_state(deciding):
    plain = decide(deciding, {"a": SCORE, "b": SCORE})
    deciding.engine.submitted.clear()
    deciding.run(deciding.engine.send, deciding.engine.ready(states_bytes=64))
    deciding.wait_for(lambda: deciding.model.serving().states_bytes == 64)
    assert decide(deciding, {"a": SCORE, "b": SCORE}) == plain
    first, *others = deciding.engine.submitted
    assert first.sampling.logprob_token_ids == []
    assert {other.prompt[: len(first.prompt)] for other in others} == {first.prompt}
    deciding.engine.submitted.clear()
    decide(deciding, {"a": SCORE})
    assert len(deciding.engine.submitted) == 1  # nobody to share it with


def test_255_options_that_share_their_letters(deciding):
    options = {f"option {i}": None for i in range(255)}
    answer = decide(deciding, {"q": {**CHOICE, "criteria": options}})["answers"]["q"]
    assert list(answer["probabilities"]) == list(options)
    assert len(set(answer["probabilities"].values())) > 10
    assert math.fsum(answer["probabilities"].values()) == pytest.approx(1)


def test_a_state_of_json(deciding):
    body = {"state": {"b": [1, "ü"], "a": None}, "questions": {"q": NOUL}}
    assert deciding.http.post("/v1/systemone", json=body).status_code == 200
    assert '{"b":[1,"ü"],"a":null}' in deciding.core.decode(prompts(deciding)[0], skip_special_tokens=False)


def test_the_form_of_openai(deciding):
    questions = [
        {"type": "predicate", "instructions": "Is it late?", "name": "late"},
        {
            "type": "choice",
            "instructions": "Which?",
            "choices": [{"value": "a", "description": "x"}, {"value": "b"}],
        },
        {"type": "score", "instructions": "How?", "levels": [{"label": "low"}, {"label": "high"}]},
    ]
    conversation = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
    body = {"model": "toy", "input": conversation, "questions": questions}
    made = deciding.openai.post("/decisions", body=body, cast_to=object)
    late, choice, score = made["answers"]
    assert made["object"] == "decision"
    assert late["name"] == "late"
    assert 0 < late["probability"] < 1
    assert "name" not in choice
    assert [one["value"] for one in choice["probabilities"]] == ["a", "b"]
    assert [(one["value"], one["label"]) for one in score["probabilities"]] == [(0, "low"), (1, "high")]
    assert made["usage"]["total_tokens"] == made["usage"]["input_tokens"] > 0
    assert "user: Hello\n\nassistant: Hi" in deciding.core.decode(
        prompts(deciding)[0], skip_special_tokens=False
    )


def test_both_forms_ask_the_same(deciding):
    one = decide(deciding, {"q": NOUL})["answers"]["q"]["noul"]
    question = {"type": "predicate", "instructions": NOUL["instructions"]}
    body = {"input": STATE, "questions": [question]}
    assert deciding.http.post("/v1/decisions", json=body).json()["answers"][0]["probability"] == one


def test_no_more_with_the_engine_than_it_takes(deciding):
    deciding.run(setattr, deciding.engine, "max_num_seqs", 3)
    deciding.call(deciding.restart())
    most = []
    step = deciding.engine.step
    deciding.run(
        setattr, deciding.engine, "step", lambda: (most.append(len(deciding.engine.running)), step())[1]
    )
    decide(deciding, {f"q{i}": NOUL for i in range(20)})
    assert max(most) <= 3


BAD = [
    ({"questions": {}}, "1 to 64"),
    ({"questions": {f"q{i}": NOUL for i in range(65)}}, "has 65: 1 to 64"),
    ({"questions": {"a b": NOUL}}, "letters, digits"),
    ({"questions": {"": NOUL}}, "letters, digits"),
    (
        {"questions": {"q": {**NOUL, "type": "essay"}}},
        "`questions.q.type` is 'essay': use one of noul, choice",
    ),
    ({"questions": {"q": {"type": "choice", "instructions": "?"}}}, "object of options"),
    ({"questions": {"q": {**CHOICE, "criteria": {}}}}, "has 0 options: 2 to 255"),
    ({"questions": {"q": {**CHOICE, "criteria": {"a": None}}}}, "has 1 options: 2 to 255"),
    ({"questions": {"q": {**CHOICE, "criteria": {str(i): None for i in range(256)}}}}, "has 256 options"),
    ({"questions": {"q": {**CHOICE, "criteria": {"a": None, " ": None}}}}, "option without a name"),
    ({"questions": {"q": {**CHOICE, "criteria": ["a", "b"]}}}, "object of options"),
    ({"questions": {"q": {**SCORE, "criteria": ["low", "low"]}}}, "'low' twice"),
    ({"questions": {"q": {**SCORE, "criteria": [str(i) for i in range(11)]}}}, "2 to 10"),
    ({"questions": {"q": {**SCORE, "criteria": {"low": None}}}}, "list of levels"),
    ({"questions": {"q": {**NOUL, "criteria": {"maybe": "x"}}}}, "`true` and `false`"),
    ({"questions": {"q": {**NOUL, "criteria": ["x"]}}}, "`true` and `false`"),
    ({"questions": {"q": {"instructions": "?"}}}, "type` is missing"),
    ({"questions": [NOUL]}, "expected `object`"),
    ({"questions": {"q": NOUL}, "state": ""}, "`state` is empty"),
    ({"questions": {"q": NOUL}, "state": 7}, "`state`"),
    ({"questions": {"q": NOUL}, "images": ["data:image/png;base64,"]}, "images"),
    ({"questions": {"q": NOUL}, "state": "word " * 9000}, "maximum context length is 4096"),
    (
        {"questions": {"q": {**NOUL, "instructions": "word " * 3000}}, "state": "word " * 10},
        "reduce the length",
    ),
]


@pytest.mark.parametrize(("fields", "message"), BAD, ids=[message[:24] for _, message in BAD])
def test_bad_requests(deciding, fields, message):
    answer = deciding.http.post("/v1/systemone", json={"state": STATE, **fields})
    assert answer.status_code == 400, answer.text
    found = answer.json()["error"]["message"]
    assert message in found
    assert not deciding.engine.submitted


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({"type": "choice", "instructions": "?", "choices": []}, "has 0 options"),
        ({"type": "choice", "instructions": "?", "choices": [{"value": "a"}, {"value": "a"}]}, "'a' twice"),
        (
            {"type": "predicate", "instructions": "?", "choices": [{"value": "a"}]},
            "only a choice has `choices`",
        ),
        ({"type": "choice", "instructions": "?", "levels": [{"label": "a"}]}, "only a score has `levels`"),
        ({"type": "noul", "instructions": "?"}, "use one of predicate, choice, score"),
        ({"type": "predicate", "instructions": ""}, "instructions"),
    ],
)
def test_bad_questions_in_the_form_of_openai(deciding, question, message):
    answer = deciding.http.post("/v1/decisions", json={"input": "x", "questions": [question]})
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]


def test_more_than_200_decisions_are_refused(deciding):
    body = {"input": "x", "questions": [{"type": "predicate", "instructions": "?"}] * 201}
    answer = deciding.http.post("/v1/decisions", json=body)
    assert "has 201: 1 to 200" in answer.json()["error"]["message"]


def test_a_model_without_a_head_says_so(deciding):
    deciding.run(setattr, deciding.engine, "can_generate", False)
    deciding.call(deciding.restart())
    answer = systemone(deciding, {"q": NOUL})
    assert answer.status_code == 400
    assert "no head" in answer.json()["error"]["message"]


@pytest.mark.parametrize("name", ["joint_head_config.json", "decision_config.json"])
def test_a_head_of_its_own_is_refused_by_name(deciding, name, tmp_path: Path):
    write_model(tmp_path, deciding.core)
    assert read_model_files(tmp_path).decision_head == ""
    (tmp_path / name).write_text("{}")
    deciding.run(setattr, deciding.model.prompts, "files", read_model_files(tmp_path))
    answer = systemone(deciding, {"q": NOUL})
    assert answer.status_code == 400
    assert name in answer.json()["error"]["message"]


def test_an_engine_that_dies_is_an_error(deciding):
    deciding.run(setattr, deciding.engine, "reject", "no room")
    answer = systemone(deciding, {f"q{i}": NOUL for i in range(9)})
    assert answer.status_code == 400
    assert "no room" in answer.json()["error"]["message"]
    deciding.run(setattr, deciding.engine, "reject", "")
    assert systemone(deciding, {"q": NOUL}).status_code == 200


def test_an_adapter_decides_by_its_name(deciding):
    decide(deciding, {"q": NOUL})
    plain = deciding.engine.submitted[-1]
    deciding.run(deciding.engine.send, deciding.engine.ready(adapters={"sql": "digest"}))
    deciding.wait_for(lambda: bool(deciding.model.serving().adapters))
    deciding.run(deciding.gateway.services.models.index)
    assert decide(deciding, {"q": NOUL}, model="sql")["model"] == "sql"
    adapted = deciding.engine.submitted[-1]
    assert (plain.adapter, adapted.adapter) == ("", "digest")
    assert adapted.salt != plain.salt  # its pages are no other's


def test_the_state_counts_once_for_the_tenant_too(deciding):
    before = counted(deciding)
    made = decide(deciding, {f"q{i}": SCORE for i in range(5)})
    assert counted(deciding) - before == made["usage"]["input_tokens"]


def counted(service) -> float:
    lines = service.http.get("/metrics").text.splitlines()
    found = [line for line in lines if line.startswith("vllm:prompt_tokens_total")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in found)
