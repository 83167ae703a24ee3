"""config.json of a model: a Program is made of it, or it is refused naming the key."""

from __future__ import annotations

import json
import warnings
from typing import Any

from firelane.errors import FirelaneError
from fuzz.json_mutator import mutate_json
from fuzz.programs import load_program
from fuzz.target import Target


def run(data: bytes) -> None:
    try:
        config: Any = json.loads(data)
    except (ValueError, RecursionError):
        return
    if isinstance(config, dict):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            load_program(config)


TARGET = Target(
    run=run,
    mutate=mutate_json,
    refusals=(FirelaneError,),
    words=(
        *(
            b"0",
            b"-1",
            b"1e308",
            b"9223372036854775808",
            b"null",
            b"true",
            b"[]",
            b"{}",
            b'"x"',
            b"NaN",
            b"0.5",
        ),
        *(b'"rope_scaling":{"rope_type":"yarn","factor":2.0}', b'"rope_parameters":{', b'"layer_types":['),
        *(b'"sliding_attention"', b'"full_attention"', b'"sliding_window":', b'"num_key_value_heads":'),
        *(
            b'"head_dim":',
            b'"quantization_config":{"quant_method":"',
            b'"hidden_act":"silu"',
            b'"text_config":{',
        ),
        *(
            b'"num_experts":',
            b'"num_experts_per_tok":',
            b'"max_position_embeddings":',
            b'"num_hidden_layers":',
        ),
    ),
)
