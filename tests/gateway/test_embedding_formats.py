"""Numbers of embeddings in base64 and in other formats than float32."""

from __future__ import annotations

import array
import base64
import math

import numpy as np
import pytest
from embeddings_support import embed, vectors

from firelane.gateway.apis.embeddings.vectors import rounded


def test_base64_is_little_endian_float32(service):
    raw = embed(service, encoding_format="base64").json()["data"][0]["embedding"]
    numbers = np.frombuffer(base64.b64decode(raw), "<f4")
    np.testing.assert_array_equal(numbers, np.float32(vectors(embed(service))[0]))


FORMATS = {"float32": "<f4", "float16": "<f2"}


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("order", ["little", "big", "native", None])
def test_numbers_of_another_format(service, kind, order):
    fields = {"embed_dtype": kind, "endianness": order, "encoding_format": "base64"}
    raw = base64.b64decode(embed(service, **fields).json()["data"][0]["embedding"])
    dtype = np.dtype(FORMATS[kind]).newbyteorder(">" if order == "big" else "<")
    whole = np.float32(vectors(embed(service))[0])
    np.testing.assert_array_equal(np.frombuffer(raw, dtype), whole.astype(FORMATS[kind]))


def test_bfloat16_is_rounded_to_the_nearest(service):
    whole = np.float32(vectors(embed(service))[0])
    raw = embed(service, embed_dtype="bfloat16", encoding_format="base64").json()["data"][0]["embedding"]
    found = (np.frombuffer(base64.b64decode(raw), "<u2").astype(np.uint32) << 16).view(np.float32)
    assert np.all(np.abs(found - whole) <= np.abs(whole) * 2.0**-9)
    assert np.any(found != whole)
    np.testing.assert_array_equal(np.float32(vectors(embed(service, embed_dtype="bfloat16"))[0]), found)


def test_numbers_that_a_format_does_not_reach():
    numbers = array.array("f", [1e5, -7e4, 65504.0, 3.0000002])
    assert rounded(numbers, "float16").tolist() == [math.inf, -math.inf, 65504.0, 3.0]
    assert rounded(numbers, "bfloat16").tolist() == [99840.0, -70144.0, 65536.0, 3.0]


def test_dimensions_by_another_name(service):
    np.testing.assert_array_equal(
        vectors(embed(service, output_dimension=2)), vectors(embed(service, dimensions=2))
    )
    answer = embed(service, output_dimension=2, dimensions=3)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "output_dimension")


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"output_dtype": "int8"}, "output_dtype"),
        ({"embedding_types": ["binary"]}, "embedding_types"),
        ({"prompt_name": "query"}, "prompt_name"),
        ({"late_chunking": True}, "late_chunking"),
        ({"embed_dtype": "fp8_e4m3"}, "embed_dtype"),
    ],
)
def test_vectors_that_are_not_made_here(service, fields, name):
    answer = embed(service, **fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)
    assert embed(service, output_dtype="float", embedding_types=["float"], input_type=None).status_code == 200


def test_a_model_without_prompts_reads_all_kinds_of_input_alike(service):
    np.testing.assert_array_equal(vectors(embed(service, input_type="query")), vectors(embed(service)))
