"""Configuration: every option of a node, declared once, as a field of its section.

How values get here, and what else follows from a field, is the business of `mq.config`.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

KIB, MIB, GIB, EIB = 1 << 10, 1 << 20, 1 << 30, 1 << 60

# `extra` carries what msgspec does not know: how to say what is legal, a metavar, a second flag,
# the key by which an option was known before.
_NAME_PATTERN = r"^[A-Za-z0-9_-]{1,127}\Z"
_NAME_EXTRA = {"legal": "1 to 127 of letters, digits, _ and -", "metavar": "NAME"}
_Name = Annotated[str, Meta(pattern=_NAME_PATTERN, extra=_NAME_EXTRA)]
_NodeName = Annotated[str, Meta(pattern=_NAME_PATTERN, extra={**_NAME_EXTRA, "former": "node"})]
# Control characters and undecodable bytes could be neither logged nor written back as TOML.
_Directory = Annotated[
    str,
    Meta(
        pattern=r"^[^\x00-\x1f\x7f\ud800-\udfff]+\Z",
        extra={
            "legal": "a path, not empty, without control characters",
            "metavar": "DIR",
            "flag": "--data",
        },
    ),
]
_Ratio = Annotated[float, Meta(gt=0, le=1)]
_Count = Annotated[int, Meta(ge=1, le=100_000_000)]


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Building one directly checks nothing: tests may use values that a user may not."""


class NodeConfig(_Section, frozen=True, kw_only=True):
    cluster: Annotated[_Name, Meta(description="Cluster that this node belongs to.")] = "mq"
    broker_set: Annotated[_Name, Meta(description="Broker set: the nodes that share one log.")] = (
        "set-0"
    )
    id: Annotated[_NodeName, Meta(description="This node's name, unique in its broker set.")] = (
        "node-0"
    )
    data: Annotated[
        _Directory, Meta(description="Directory that holds all of the node's data.")
    ] = "data"


_Text = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9_.:-]{0,127}\Z",
        extra={"legal": "up to 127 of letters, digits and _.:-", "metavar": "NAME"},
    ),
]
_Address = Annotated[
    str,
    Meta(
        pattern=r"^(?:[^\s,=]{1,253}:[0-9]{1,5})?\Z",
        extra={"legal": "host:port, or empty", "metavar": "ADDRESS"},
    ),
]
_Port = Annotated[int, Meta(ge=0, le=65_535, extra={"metavar": "PORT"})]
_Host = Annotated[
    str,
    Meta(
        pattern=r"^[^\s,=/]{1,253}\Z",
        extra={"legal": "a host name or an IP address", "metavar": "HOST"},
    ),
]

_File = Annotated[
    str,
    Meta(
        pattern=r"^[^\x00-\x1f\x7f\ud800-\udfff]*\Z",
        extra={"legal": "a path, or empty", "metavar": "FILE"},
    ),
]


class BrokerConfig(_Section, frozen=True, kw_only=True):
    host: Annotated[
        _Host, Meta(description="Where clients connect; 0.0.0.0: on all interfaces.")
    ] = "127.0.0.1"
    port: Annotated[
        _Port,
        Meta(description="Port for clients; 0: any that is free.", extra={"flag": "--port"}),
    ] = 8081
    advertised: Annotated[
        _Address,
        Meta(description="What other nodes and clients are told to connect to; empty: host, port."),
    ] = ""
    external_listen: Annotated[
        _Address,
        Meta(description="A second place for clients, such as those outside of a container."),
    ] = ""
    external_advertised: Annotated[
        _Address,
        Meta(description="What clients that came by the second place are told; empty: the same."),
    ] = ""
    seeds: Annotated[
        str,
        Meta(
            pattern=r"^(?:[^\s,=]{1,253}:[0-9]{1,5}(?:,[^\s,=]{1,253}:[0-9]{1,5})*)?\Z",
            description="Brokers of other sets of the cluster; those of its own do no harm.",
            extra={"legal": "host:port,host:port,..., or empty", "metavar": "ADDRESSES"},
        ),
    ] = ""
    zone: Annotated[_Text, Meta(description="Zone of this node, such as a data centre.")] = ""
    auto_create_topics: Annotated[
        Literal["no", "yes"],
        Meta(description="Whether a producer's first message creates its topic."),
    ] = "yes"
    auto_create_by_consumers: Annotated[
        Literal["no", "yes"],
        Meta(description="yes: a consumer creates its topic, too; no: it waits for the topic."),
    ] = "no"
    default_queues: Annotated[
        int,
        Meta(ge=1, le=65_536, description="Queues of a topic that is created without a number."),
    ] = 8
    send_timeout_ms: Annotated[
        int,
        Meta(ge=100, le=600_000, description="After which a send is answered as not known."),
    ] = 10_000
    heartbeat_ms: Annotated[
        int, Meta(ge=100, le=600_000, description="Time between two signs of life of a consumer.")
    ] = 10_000
    member_expires_ms: Annotated[
        int, Meta(ge=300, le=3_600_000, description="Silence after which a consumer is gone.")
    ] = 30_000
    retries_max: Annotated[
        int,
        Meta(ge=0, le=1_000, description="Retries of a message before it is a dead letter."),
    ] = 16
    transport: Annotated[
        Literal["grpcio", "mq"],
        Meta(description="What speaks gRPC to clients: gRPC's own server, or the broker's."),
    ] = "mq"
    tls: Annotated[
        Literal["off", "optional", "required"],
        Meta(description="TLS 1.2 or later for clients and brokers; optional: or plaintext."),
    ] = "off"
    tls_clients: Annotated[
        Literal["no", "optional", "required"],
        Meta(description="Whether clients may or must show a certificate of tls_ca."),
    ] = "no"
    tls_cert: Annotated[_File, Meta(description="Certificate that clients are shown.")] = ""
    tls_key: Annotated[_File, Meta(description="Private key of the certificate.")] = ""
    tls_ca: Annotated[
        _File,
        Meta(description="Authority of brokers' and clients' certificates; empty: public ones."),
    ] = ""
    external_tls: Annotated[
        Literal["same", "off", "optional", "required"],
        Meta(description="TLS of the second place for clients; same: as broker.tls."),
    ] = "same"
    external_tls_clients: Annotated[
        Literal["same", "no", "optional", "required"],
        Meta(description="tls_clients of the second place; same: as broker.tls_clients."),
    ] = "same"
    connections_max: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="Connections of clients; 0: a quarter of the open files, at most 10,000.",
        ),
    ] = 0
    in_flight_bytes: Annotated[
        int,
        Meta(ge=8 * MIB, le=GIB, description="Messages in memory that are not committed yet."),
    ] = 32 * MIB
    unsent_bytes: Annotated[
        int,
        Meta(
            ge=MIB, le=GIB, description="Answers that clients have not taken yet; beyond it, small."
        ),
    ] = 32 * MIB
    backlog_bytes: Annotated[
        int,
        Meta(ge=MIB, le=1024 * GIB, description="Behind the end: such readers go to a follower."),
    ] = 128 * MIB
    drain_ms: Annotated[
        int,
        Meta(ge=0, le=600_000, description="How long a stop waits for requests under way."),
    ] = 5_000


_CheckMs = Annotated[int, Meta(ge=100, le=86_400_000)]


class AuthConfig(_Section, frozen=True, kw_only=True):
    mode: Annotated[
        Literal["off", "observe", "required"],
        Meta(
            description="required: callers are known and policies hold; observe: admits all, "
            "and tells what it would refuse."
        ),
    ] = "off"
    open: Annotated[
        Literal["no", "yes"],
        Meta(description="yes: clients of other machines are served although mode is off."),
    ] = "no"
    bootstrap_admin_file: Annotated[
        _File,
        Meta(description="Names the first administrator, while there is none."),
    ] = ""
    secret_key_file: Annotated[
        _File,
        Meta(description="Encrypts secrets that have to be stored, of RocketMQ's access keys."),
    ] = ""
    cluster_key_file: Annotated[
        _File,
        Meta(description="The API key by which brokers of this cluster know each other."),
    ] = ""


class TransactionsConfig(_Section, frozen=True, kw_only=True):
    first_check_ms: Annotated[
        _CheckMs,
        Meta(description="Age at which a transaction without an end is asked about."),
    ] = 6_000
    check_interval_ms: Annotated[
        _CheckMs, Meta(description="Time between two questions about a transaction.")
    ] = 30_000
    checks_max: Annotated[
        int, Meta(ge=1, le=1_000, description="Questions after which a transaction is given up.")
    ] = 15


class MetricsConfig(_Section, frozen=True, kw_only=True):
    host: Annotated[_Host, Meta(description="Where Prometheus connects.")] = "127.0.0.1"
    port: Annotated[_Port, Meta(description="Port of the metrics; 0: any that is free.")] = 5557
    enabled: Annotated[Literal["no", "yes"], Meta(description="Whether metrics are served.")] = (
        "yes"
    )
    tls: Annotated[
        Literal["off", "on"],
        Meta(description="on: metrics are served with TLS, by broker.tls_cert and tls_key."),
    ] = "off"


class ConsoleConfig(_Section, frozen=True, kw_only=True):
    port: Annotated[
        _Port, Meta(description="Port of a web console that runs beside the broker; 0: none.")
    ] = 0
    host: Annotated[_Host, Meta(description="Where browsers connect.")] = "127.0.0.1"


class StoreConfig(_Section, frozen=True, kw_only=True):
    segment_bytes: Annotated[
        int,
        # A file has up to 4 GiB; the rest is for the entries of new leaders, which do not wait.
        Meta(ge=64 * KIB, le=4 * GIB - 16 * MIB, description="Size of one CommitLog file."),
    ] = GIB
    flush: Annotated[
        Literal["sync", "async"],
        Meta(
            description="sync: a message is on disk before it is acknowledged; async: soon after."
        ),
    ] = "sync"
    async_flush_ms: Annotated[
        int,
        Meta(ge=1, le=10_000, description="Time until a message is synced when flush is async."),
    ] = 500
    message_bytes_max: Annotated[
        int, Meta(ge=KIB, le=64 * MIB, description="Largest body of a message.")
    ] = 4 * MIB
    entry_bytes_max: Annotated[
        int, Meta(ge=2 * KIB, le=128 * MIB, description="Largest log entry: a group of messages.")
    ] = 4 * MIB + 256 * KIB
    checkpoint_log_bytes: Annotated[
        int,
        Meta(
            ge=64 * KIB, le=EIB, description="How much log may have to be replayed after a crash."
        ),
    ] = 32 * MIB
    verify_bytes: Annotated[
        int,
        Meta(
            ge=64 * KIB,
            le=EIB,
            description="How much of the newest log is checksummed at start.",
        ),
    ] = 2 * GIB
    scrub_bytes_per_s: Annotated[
        int,
        Meta(ge=0, le=1024 * GIB, description="Log checked in the background; 0: none."),
    ] = 2 * MIB
    queue_file_units: Annotated[_Count, Meta(description="Messages in one ConsumeQueue file.")] = (
        300_000
    )
    index_slots: Annotated[_Count, Meta(description="Hash slots in one key index file.")] = 500_000
    index_items: Annotated[_Count, Meta(description="Keys in one key index file.")] = 2_000_000


class RetentionConfig(_Section, frozen=True, kw_only=True):
    hours: Annotated[int, Meta(ge=1, le=876_000, description="Age at which messages expire.")] = 72
    bytes: Annotated[
        int, Meta(ge=0, le=EIB, description="Log size above which the oldest goes; 0: no limit.")
    ] = 0
    clean_expired_ratio: Annotated[
        _Ratio, Meta(description="Disk use from which expired segments are deleted at once.")
    ] = 0.75
    clean_oldest_ratio: Annotated[
        _Ratio, Meta(description="Disk use from which the oldest segments are deleted.")
    ] = 0.85
    refuse_writes_ratio: Annotated[
        _Ratio, Meta(description="Disk use from which writes are refused.")
    ] = 0.90
    check_ms: Annotated[
        int, Meta(ge=10, le=86_400_000, description="Time between two checks of age and disk use.")
    ] = 10_000


_MEMBER = r"[A-Za-z0-9_-]{1,127}=[^\s,=]{1,253}:[0-9]{1,5}"
_Members = Annotated[
    str,
    Meta(
        pattern=rf"^(?:{_MEMBER}(?:,{_MEMBER})*)?\Z",
        extra={"legal": "node=host:port of each member, with commas", "metavar": "MEMBERS"},
    ),
]


class RaftConfig(_Section, frozen=True, kw_only=True):
    members: Annotated[
        _Members,
        Meta(description="Nodes of a new broker set, the same on each; empty: this one alone."),
    ] = ""
    listen: Annotated[
        _Address,
        Meta(description="Where the other nodes connect; empty: as in members, if there are any."),
    ] = ""
    join: Annotated[
        Literal["no", "yes"],
        Meta(description="yes: start with nothing and wait to be added to a running broker set."),
    ] = "no"
    heartbeat_ms: Annotated[
        int, Meta(ge=10, le=10_000, description="Time between two signs of life of a leader.")
    ] = 100
    election_timeout_ms: Annotated[
        int,
        Meta(
            ge=50,
            le=60_000,
            description="Silence of a leader, at the least, after which another is elected; "
            "at the most twice that.",
        ),
    ] = 500
    tls_cert: Annotated[
        _File, Meta(description="Certificate of this node for the others; empty: no TLS.")
    ] = ""
    tls_key: Annotated[_File, Meta(description="Private key of the certificate.")] = ""
    tls_ca: Annotated[
        _File, Meta(description="Authority that the certificates of all nodes come from.")
    ] = ""


class LogConfig(_Section, frozen=True, kw_only=True):
    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="Least severe log line that is written."),
    ] = "info"
    format: Annotated[
        Literal["auto", "console", "json"],
        Meta(description="auto: console on a terminal, JSON lines elsewhere."),
    ] = "auto"


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    node: NodeConfig = NodeConfig()
    broker: BrokerConfig = BrokerConfig()
    auth: AuthConfig = AuthConfig()
    transactions: TransactionsConfig = TransactionsConfig()
    metrics: MetricsConfig = MetricsConfig()
    console: ConsoleConfig = ConsoleConfig()
    store: StoreConfig = StoreConfig()
    raft: RaftConfig = RaftConfig()
    retention: RetentionConfig = RetentionConfig()
    log: LogConfig = LogConfig()
