"""An application of Ray Serve LLM with Firelane, for an interpreter that has Ray: says READY when it serves,
and ends with its standard input."""

from __future__ import annotations

import sys

import ray
from ray import serve
from ray.serve.llm import LLMConfig, build_openai_app


def main(port: int, model: str) -> None:
    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=100 << 20)
    config = LLMConfig(
        model_loading_config={"model_id": "toy", "model_source": model},
        server_cls="firelane_ray.deployment.FirelaneServer",
        engine_kwargs={"threads": 1, "max_num_seqs": 8, "kv_cache_gib": 0.05},
        deployment_config={
            "num_replicas": 1,
            "health_check_period_s": 1,
            "ray_actor_options": {"num_cpus": 0.5},
        },
        log_engine_metrics=False,
    )
    ingress = {"num_replicas": 1, "ray_actor_options": {"num_cpus": 0.1}}
    app = build_openai_app({"llm_configs": [config], "ingress_deployment_config": ingress})
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(app, blocking=False)
    print("READY", flush=True)
    sys.stdin.read()
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
