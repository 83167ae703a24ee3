from dynamo.common.configuration.groups.runtime_args import DynamoRuntimeConfig
from dynamo.common.constants import DisaggregationMode

class WorkerConfig:
    model_name: str
    served_model_name: str | None
    disaggregation_mode: DisaggregationMode
    @classmethod
    def from_runtime_config(
        cls,
        runtime_cfg: DynamoRuntimeConfig,
        model_name: str,
        served_model_name: str | None = None,
        *,
        component: str = ...,
        disaggregation_mode: DisaggregationMode = ...,
    ) -> WorkerConfig: ...
