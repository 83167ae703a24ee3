"""Keys of config.json that do not change what a model computes: of bookkeeping, training and generation, and
tokens (which the gateway reads from the tokenizer and generation_config.json).
"""

from __future__ import annotations

HARMLESS = frozenset(
    [
        "add_cross_attention",
        "architectures",
        "attention_dropout",
        "attn_implementation",
        "auto_map",  # code of its own, which never runs: architectures are known by name
        "bad_words_ids",
        "begin_suppress_tokens",
        "cache_implementation",
        "chunk_size_feed_forward",
        "cross_attention_hidden_size",
        "decoder_start_token_id",
        "diversity_penalty",
        "do_sample",
        "early_stopping",
        "embd_pdrop",
        "encoder_no_repeat_ngram_size",
        "exponential_decay_length_penalty",
        "finetuning_task",
        "firelane_lossless",
        "hidden_dropout",
        "id2label",
        "ignore_index",
        "init_method",
        "initializer_range",
        "is_decoder",
        "is_encoder_decoder",
        "is_llama_config",
        "label2id",
        "length_penalty",
        "max_length",
        "min_length",
        "model_type",
        "name_or_path",
        "no_repeat_ngram_size",
        "num_beam_groups",
        "num_beams",
        "num_labels",
        "num_return_sequences",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "output_scores",
        "prefix",
        "pretraining_tp",
        "problem_type",
        "pruned_heads",
        "quantization_config",  # of the weights alone, which are served as the bf16 ones that they stand for
        "remove_invalid_values",
        "repetition_penalty",
        "resid_pdrop",
        "return_dict",
        "return_dict_in_generate",
        "sentence_transformers",  # files beside it, which encoders read; of others the gateway does
        "suppress_tokens",
        "task_specific_params",
        "temperature",
        "tf_legacy_loss",
        "tie_encoder_decoder",
        "tokenizer_class",
        "top_k",
        "top_p",
        "torchscript",
        "transformers.js_config",
        "transformers_version",
        "typical_p",
        "unsloth_fixed",
        "unsloth_version",
        "use_bfloat16",
        "use_cache",
        "vocab_file",
    ]
)


def is_harmless(key: str) -> bool:
    return key in HARMLESS or key.startswith("_") or key.endswith("_token_id")
