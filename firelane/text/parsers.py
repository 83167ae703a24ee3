"""Names of the parsers of calls and of reasoning that a server can be told to use. Imports nothing: options
of the command list them.
"""

TOOL_PARSERS = (
    *("auto", "none", "llama3_json", "hermes", "mistral", "harmony", "deepseek_v3", "deepseek_v31"),
    *("deepseek_v32", "deepseek_v4", "kimi_k2", "qwen3_coder", "glm45", "glm47", "minimax_m2", "seed_oss"),
    *("gemma4", "llama4_pythonic", "lfm2", "phi4_mini_json", "granite", "nemotron_json", "olmo3"),
    *("minimax_m1", "apriel", "gigachat3", "apertus", "hy3", "minicpm5", "cohere", "kimi_k3"),
    *("muse_glimmer", "minimax_m3", "functionary_v31", "glm4"),
)
TOOL_ALIASES = {
    "openai": "harmony",
    "gpt_oss": "harmony",
    "qwen3_xml": "qwen3_coder",
    "pythonic": "llama4_pythonic",
    "llama4_json": "llama3_json",
    "llama_nemotron_json": "nemotron_json",
    "nemotron_nano_v2": "nemotron_json",
}
"""Names that other servers have for the same."""
REASONING_PARSERS = (
    "auto",
    "none",
    "think",
    "deepseek_r1",
    "mistral",
    "gemma4",
    "seed_oss",
    "hy3",
    "apriel",
    "apertus",
    "cohere",
    "kimi_k3",
    "minimax_m3",
    "harmony",
    "muse_glimmer",
)
REASONING_ALIASES = {
    "openai_gptoss": "harmony",
    "gpt_oss": "harmony",
    **dict.fromkeys(
        (
            *("deepseek_v3", "deepseek_v4", "qwen3", "glm45", "kimi_k2", "minimax_m2"),
            *("ernie45", "nemotron_v3", "olmo3", "step3"),
        ),
        "think",
    ),
}
