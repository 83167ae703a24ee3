"""Hosts that the ranks of one engine are on."""

from pathlib import Path
from typing import Annotated

import msgspec

from firelane.engine_config.groups import HOSTS, PAGES
from firelane.options import Option

HOSTS_PORT = 29501
KeyFile = Annotated[
    Path | None,
    Option(
        "a secret of at least 16 bytes that all hosts, or servers that exchange pages, share",
        PAGES,
        flag="cluster-key-file",
        default="FIRELANE_CLUSTER_KEY",
    ),
]


class HostsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Hosts that an engine's ranks are on, of which this process's is number `own`. address, port: where host
    0 takes connections of the others."""

    count: Annotated[
        int,
        Option(
            "hosts that share the ranks",
            HOSTS,
            flag="nnodes",
            metavar="M",
            least=1,
            default="LWS_GROUP_SIZE of Kubernetes' LeaderWorkerSet, or 1",
            see="parallel.md#several-hosts",
        ),
    ]
    own: Annotated[
        int,
        Option(
            "number of this host; 0 serves, the others compute for it",
            HOSTS,
            flag="node-rank",
            metavar="R",
            least=0,
            default="LWS_WORKER_INDEX, or 0",
        ),
    ]
    address: Annotated[
        str,
        Option(
            "address of host 0 that the others reach",
            HOSTS,
            flag="master-addr",
            metavar="HOST[:PORT]",
            default=f"LWS_LEADER_ADDRESS; port {HOSTS_PORT}",
        ),
    ]
    port: int
    key_file: KeyFile = None
    timeout_s: Annotated[
        float, Option("seconds for all hosts to be there", HOSTS, flag="node-timeout", file=True, metavar="S")
    ] = 300.0
