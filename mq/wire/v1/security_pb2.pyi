from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CredentialType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CREDENTIAL_UNKNOWN: _ClassVar[CredentialType]
    API_KEY: _ClassVar[CredentialType]
    PASSWORD: _ClassVar[CredentialType]
    SESSION_KEY: _ClassVar[CredentialType]
    HMAC_SHA1: _ClassVar[CredentialType]
CREDENTIAL_UNKNOWN: CredentialType
API_KEY: CredentialType
PASSWORD: CredentialType
SESSION_KEY: CredentialType
HMAC_SHA1: CredentialType

class User(_message.Message):
    __slots__ = ("name", "roles", "namespaces", "is_disabled", "created_at_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    IS_DISABLED_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    roles: _containers.RepeatedScalarFieldContainer[str]
    namespaces: _containers.RepeatedScalarFieldContainer[str]
    is_disabled: bool
    created_at_ms: int
    def __init__(self, name: _Optional[str] = ..., roles: _Optional[_Iterable[str]] = ..., namespaces: _Optional[_Iterable[str]] = ..., is_disabled: _Optional[bool] = ..., created_at_ms: _Optional[int] = ...) -> None: ...

class Credential(_message.Message):
    __slots__ = ("id", "user", "type", "proof", "created_at_ms", "expires_at_ms", "is_sealed")
    ID_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_MS_FIELD_NUMBER: _ClassVar[int]
    IS_SEALED_FIELD_NUMBER: _ClassVar[int]
    id: str
    user: str
    type: CredentialType
    proof: bytes
    created_at_ms: int
    expires_at_ms: int
    is_sealed: bool
    def __init__(self, id: _Optional[str] = ..., user: _Optional[str] = ..., type: _Optional[_Union[CredentialType, str]] = ..., proof: _Optional[bytes] = ..., created_at_ms: _Optional[int] = ..., expires_at_ms: _Optional[int] = ..., is_sealed: _Optional[bool] = ...) -> None: ...

class AccessPolicy(_message.Message):
    __slots__ = ("subject", "line")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    subject: str
    line: str
    def __init__(self, subject: _Optional[str] = ..., line: _Optional[str] = ...) -> None: ...

class Quota(_message.Message):
    __slots__ = ("subject", "publish_bytes_per_s", "publish_messages_per_s", "delivered_bytes_per_s", "stored_bytes", "streams", "topics", "queues", "groups", "delayed_messages", "open_transactions", "catalog_changes_per_s")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_MESSAGES_PER_S_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    DELAYED_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    OPEN_TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    CATALOG_CHANGES_PER_S_FIELD_NUMBER: _ClassVar[int]
    subject: str
    publish_bytes_per_s: int
    publish_messages_per_s: int
    delivered_bytes_per_s: int
    stored_bytes: int
    streams: int
    topics: int
    queues: int
    groups: int
    delayed_messages: int
    open_transactions: int
    catalog_changes_per_s: int
    def __init__(self, subject: _Optional[str] = ..., publish_bytes_per_s: _Optional[int] = ..., publish_messages_per_s: _Optional[int] = ..., delivered_bytes_per_s: _Optional[int] = ..., stored_bytes: _Optional[int] = ..., streams: _Optional[int] = ..., topics: _Optional[int] = ..., queues: _Optional[int] = ..., groups: _Optional[int] = ..., delayed_messages: _Optional[int] = ..., open_transactions: _Optional[int] = ..., catalog_changes_per_s: _Optional[int] = ...) -> None: ...

class AccessNamespace(_message.Message):
    __slots__ = ("name", "created_at_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    created_at_ms: int
    def __init__(self, name: _Optional[str] = ..., created_at_ms: _Optional[int] = ...) -> None: ...

class AccessChange(_message.Message):
    __slots__ = ("put_user", "drop_user", "put_credential", "drop_credential", "put_policy", "drop_policy", "put_quota", "drop_quota", "put_namespace", "drop_namespace")
    PUT_USER_FIELD_NUMBER: _ClassVar[int]
    DROP_USER_FIELD_NUMBER: _ClassVar[int]
    PUT_CREDENTIAL_FIELD_NUMBER: _ClassVar[int]
    DROP_CREDENTIAL_FIELD_NUMBER: _ClassVar[int]
    PUT_POLICY_FIELD_NUMBER: _ClassVar[int]
    DROP_POLICY_FIELD_NUMBER: _ClassVar[int]
    PUT_QUOTA_FIELD_NUMBER: _ClassVar[int]
    DROP_QUOTA_FIELD_NUMBER: _ClassVar[int]
    PUT_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    DROP_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    put_user: User
    drop_user: str
    put_credential: Credential
    drop_credential: str
    put_policy: AccessPolicy
    drop_policy: AccessPolicy
    put_quota: Quota
    drop_quota: str
    put_namespace: AccessNamespace
    drop_namespace: str
    def __init__(self, put_user: _Optional[_Union[User, _Mapping]] = ..., drop_user: _Optional[str] = ..., put_credential: _Optional[_Union[Credential, _Mapping]] = ..., drop_credential: _Optional[str] = ..., put_policy: _Optional[_Union[AccessPolicy, _Mapping]] = ..., drop_policy: _Optional[_Union[AccessPolicy, _Mapping]] = ..., put_quota: _Optional[_Union[Quota, _Mapping]] = ..., drop_quota: _Optional[str] = ..., put_namespace: _Optional[_Union[AccessNamespace, _Mapping]] = ..., drop_namespace: _Optional[str] = ...) -> None: ...

class AccessState(_message.Message):
    __slots__ = ("users", "credentials", "policies", "quotas", "namespaces", "version")
    USERS_FIELD_NUMBER: _ClassVar[int]
    CREDENTIALS_FIELD_NUMBER: _ClassVar[int]
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    users: _containers.RepeatedCompositeFieldContainer[User]
    credentials: _containers.RepeatedCompositeFieldContainer[Credential]
    policies: _containers.RepeatedCompositeFieldContainer[AccessPolicy]
    quotas: _containers.RepeatedCompositeFieldContainer[Quota]
    namespaces: _containers.RepeatedCompositeFieldContainer[AccessNamespace]
    version: int
    def __init__(self, users: _Optional[_Iterable[_Union[User, _Mapping]]] = ..., credentials: _Optional[_Iterable[_Union[Credential, _Mapping]]] = ..., policies: _Optional[_Iterable[_Union[AccessPolicy, _Mapping]]] = ..., quotas: _Optional[_Iterable[_Union[Quota, _Mapping]]] = ..., namespaces: _Optional[_Iterable[_Union[AccessNamespace, _Mapping]]] = ..., version: _Optional[int] = ...) -> None: ...

class ChangeAccessRequest(_message.Message):
    __slots__ = ("changes", "expected_version")
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_VERSION_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[AccessChange]
    expected_version: int
    def __init__(self, changes: _Optional[_Iterable[_Union[AccessChange, _Mapping]]] = ..., expected_version: _Optional[int] = ...) -> None: ...

class ChangeAccessResponse(_message.Message):
    __slots__ = ("version", "digest")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    version: int
    digest: bytes
    def __init__(self, version: _Optional[int] = ..., digest: _Optional[bytes] = ...) -> None: ...

class DescribeAccessRequest(_message.Message):
    __slots__ = ("with_proofs",)
    WITH_PROOFS_FIELD_NUMBER: _ClassVar[int]
    with_proofs: bool
    def __init__(self, with_proofs: _Optional[bool] = ...) -> None: ...

class DescribeAccessResponse(_message.Message):
    __slots__ = ("state", "digest", "others")
    STATE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    state: AccessState
    digest: bytes
    others: _containers.RepeatedCompositeFieldContainer[SetAccess]
    def __init__(self, state: _Optional[_Union[AccessState, _Mapping]] = ..., digest: _Optional[bytes] = ..., others: _Optional[_Iterable[_Union[SetAccess, _Mapping]]] = ...) -> None: ...

class SetAccess(_message.Message):
    __slots__ = ("broker_set", "version", "digest")
    BROKER_SET_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    broker_set: str
    version: int
    digest: bytes
    def __init__(self, broker_set: _Optional[str] = ..., version: _Optional[int] = ..., digest: _Optional[bytes] = ...) -> None: ...

class LoginRequest(_message.Message):
    __slots__ = ("user", "password", "key_id", "key_digest")
    USER_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_DIGEST_FIELD_NUMBER: _ClassVar[int]
    user: str
    password: str
    key_id: str
    key_digest: bytes
    def __init__(self, user: _Optional[str] = ..., password: _Optional[str] = ..., key_id: _Optional[str] = ..., key_digest: _Optional[bytes] = ...) -> None: ...

class LoginResponse(_message.Message):
    __slots__ = ("expires_at_ms",)
    EXPIRES_AT_MS_FIELD_NUMBER: _ClassVar[int]
    expires_at_ms: int
    def __init__(self, expires_at_ms: _Optional[int] = ...) -> None: ...

class WhoAmIRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WhoAmIResponse(_message.Message):
    __slots__ = ("user", "roles", "namespaces", "credential", "expires_at_ms", "auth_mode", "address")
    USER_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    CREDENTIAL_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_MS_FIELD_NUMBER: _ClassVar[int]
    AUTH_MODE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    user: str
    roles: _containers.RepeatedScalarFieldContainer[str]
    namespaces: _containers.RepeatedScalarFieldContainer[str]
    credential: str
    expires_at_ms: int
    auth_mode: str
    address: str
    def __init__(self, user: _Optional[str] = ..., roles: _Optional[_Iterable[str]] = ..., namespaces: _Optional[_Iterable[str]] = ..., credential: _Optional[str] = ..., expires_at_ms: _Optional[int] = ..., auth_mode: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class CheckAccessRequest(_message.Message):
    __slots__ = ("user", "action", "kind", "name", "address")
    USER_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    user: str
    action: str
    kind: str
    name: str
    address: str
    def __init__(self, user: _Optional[str] = ..., action: _Optional[str] = ..., kind: _Optional[str] = ..., name: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class CheckAccessResponse(_message.Message):
    __slots__ = ("is_allowed", "policy", "is_superuser")
    IS_ALLOWED_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    IS_SUPERUSER_FIELD_NUMBER: _ClassVar[int]
    is_allowed: bool
    policy: AccessPolicy
    is_superuser: bool
    def __init__(self, is_allowed: _Optional[bool] = ..., policy: _Optional[_Union[AccessPolicy, _Mapping]] = ..., is_superuser: _Optional[bool] = ...) -> None: ...
