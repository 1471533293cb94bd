"""The chart of deploy/helm/mq: helm renders it, the schemas of Kubernetes take it, brokers fit it.

Helm is built by Go from the module proxy on first use; the definitions of other kinds
(ServiceMonitor, PrometheusRule, Certificate) come from the modules of their operators.
"""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from mq import config
from mq.access import keys
from mq.raft import settings as raft_settings
from mq.server import check_doors
from tests.support.foreign import programs

pytestmark = pytest.mark.timeout(1_800)  # the first run on a machine builds the programs

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "mq"
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
# The oldest that the chart says it is for, and the newest that is known.
KUBERNETES = ("1.27", kubernetes_validate.latest_version().rpartition(".")[0])
# Helm would take the chart for one of the version that it was built with, which is none.
AGAINST = ("--kube-version", KUBERNETES[-1])
NAMESPACE = "shop"
RELEASE = "mq"
VALUES = {"default": None, **{path.stem: path for path in sorted((CHART / "ci").glob("*.yaml"))}}
DEFINITIONS = (
    (
        "github.com/prometheus-operator/prometheus-operator",
        "v0.85.0",
        "example/prometheus-operator-crd",
    ),
    ("github.com/cert-manager/cert-manager", "v1.21.2", "deploy/crds"),
)

Object = dict[str, Any]


@pytest.fixture(scope="module")
def helm() -> str:
    return str(programs.installed("helm.sh/helm/v3/cmd/helm", "v3.22.0"))


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def rendered(helm: str, values: Path | None) -> str:
    named = ["--values", str(values)] if values is not None else []
    command = [helm, "template", RELEASE, str(CHART), "--namespace", NAMESPACE]
    done = run(*command, *AGAINST, *named)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Loader(yaml.CSafeLoader):
    """Takes a plain `=`, which an enumeration of an operator has, as text: YAML 1.2 does."""


Loader.add_constructor("tag:yaml.org,2002:value", lambda _, node: str(node.value))


def objects(text: str) -> list[Object]:
    return [one for one in yaml.load_all(text, Loader) if one is not None]


def of_kind(found: list[Object], kind: str) -> list[Object]:
    return [one for one in found if one["kind"] == kind]


def pods(stateful_set: Object) -> list[str]:
    name, spec = stateful_set["metadata"]["name"], stateful_set["spec"]
    return [f"{name}-{at}" for at in range(spec["replicas"])]


def container(workload: Object) -> Object:
    (found,) = workload["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def environment(stateful_set: Object, pod: str) -> dict[str, str]:
    """As the kubelet hands it to the process of this pod."""
    fields = {"metadata.name": pod, "metadata.labels['topology.kubernetes.io/zone']": "zone-1"}
    found: dict[str, str] = {}
    for one in container(stateful_set)["env"]:
        if "value" in one:
            value = re.sub(r"\$\((\w+)\)", lambda name: found[name[1]], one["value"])
        else:
            value = fields[one["valueFrom"]["fieldRef"]["fieldPath"]]
        assert isinstance(value, str)
        found[one["name"]] = value
    return found


@pytest.fixture(scope="module")
def every_manifest(helm: str) -> dict[str, str]:
    return {name: rendered(helm, values) for name, values in VALUES.items()}


@pytest.fixture(params=VALUES)
def manifests(every_manifest: dict[str, str], request: pytest.FixtureRequest) -> str:
    return every_manifest[request.param]


@pytest.mark.parametrize("name", VALUES)
def test_helm_finds_nothing_to_object_to(helm: str, name: str) -> None:
    values = VALUES[name]
    named = ["--values", str(values)] if values is not None else []
    done = run(helm, "lint", "--strict", "--quiet", str(CHART), *AGAINST, *named)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def other_schemas() -> dict[tuple[str, str], Object]:
    """Of the kinds that are not those of Kubernetes, by the version and name of the kind."""
    found = {}
    for name, version, folder in DEFINITIONS:
        for path in (programs.module(name, version) / folder).glob("*.yaml"):
            for definition in of_kind(objects(path.read_text()), "CustomResourceDefinition"):
                spec = definition["spec"]
                for one in spec["versions"]:
                    key = f"{spec['group']}/{one['name']}", spec["names"]["kind"]
                    found[key] = strict(one["schema"]["openAPIV3Schema"])
    return found


def strict(schema: Any) -> Any:
    """The same, but a field that it does not name is an error: Kubernetes drops it in silence."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items()}
    is_open = "additionalProperties" in schema or schema.get("x-kubernetes-preserve-unknown-fields")
    if schema.get("type") == "object" and "properties" in schema and not is_open:
        made["additionalProperties"] = False
    return made


def check(one: Object, version: str, other_schemas: dict[tuple[str, str], Object]) -> None:
    """Raises jsonschema.ValidationError."""
    schema = other_schemas.get((one["apiVersion"], one["kind"]))
    if schema is None:
        assert kubernetes_validate.validate(one, version, strict=True) == version
    else:
        jsonschema.Draft202012Validator(schema).validate(one)


@pytest.mark.parametrize("version", KUBERNETES)
def test_the_schemas_of_kubernetes_take_every_object(
    manifests: str, version: str, other_schemas: dict[tuple[str, str], Object]
) -> None:
    found = objects(manifests)
    assert found
    for one in found:
        check(one, version, other_schemas)


@pytest.mark.parametrize(
    ("right", "kind"),
    [("publishNotReadyAddresses", "Service"), ("relabelings", "ServiceMonitor")],
)
def test_the_schemas_find_a_wrong_field(
    every_manifest: dict[str, str],
    right: str,
    kind: str,
    other_schemas: dict[tuple[str, str], Object],
) -> None:
    text = every_manifest["secure-values"].replace(right, "wrongField")
    wrong = [one for one in of_kind(objects(text), kind) if "wrongField" in str(one)]
    assert wrong
    for one in wrong:
        with pytest.raises(jsonschema.ValidationError, match="wrongField"):
            check(one, KUBERNETES[-1], other_schemas)


def test_brokers_start_with_the_environment_of_their_pods(manifests: str) -> None:
    found = objects(manifests)
    for stateful_set in of_kind(found, "StatefulSet"):
        for pod in pods(stateful_set):
            variables = environment(stateful_set, pod)
            # What the image sets.
            variables |= {"MQ_NODE_DATA": "/data", "MQ_BROKER_HOST": "0.0.0.0"}  # noqa: S104
            options = config.load(None, {"TZ": "UTC"} | variables, {})
            check_doors(options)
            assert options.node.id == pod
            headless = f"mq-brokers.{NAMESPACE}.svc.cluster.local"
            assert options.broker.advertised == f"{pod}.{headless}:8081"
            assert f"{pod}.{headless}:8081" in options.broker.seeds.split(",")
            # Pods that came later get others by their script.
            if "command" not in container(stateful_set):
                assert f"{pod}={pod}.{headless}:8082" in options.raft.members.split(",")


def test_every_pod_has_a_name_that_the_headless_service_gives(manifests: str) -> None:
    found = objects(manifests)
    services = {one["metadata"]["name"]: one["spec"] for one in of_kind(found, "Service")}
    headless = services["mq-brokers"]
    assert headless["clusterIP"] == "None"
    # Brokers have to find each other before there is a leader, and without one none is ready.
    assert headless["publishNotReadyAddresses"] is True
    assert "publishNotReadyAddresses" not in services["mq"]
    for one in of_kind(found, "StatefulSet"):
        spec = one["spec"]
        assert spec["serviceName"] == "mq-brokers"
        assert spec["podManagementPolicy"] == "Parallel"
        labels = spec["template"]["metadata"]["labels"]
        assert spec["selector"]["matchLabels"].items() <= labels.items()
        for service in ("mq", "mq-brokers"):
            assert services[service]["selector"].items() <= labels.items()


def test_a_disruption_takes_one_broker_of_a_set(manifests: str) -> None:
    found = objects(manifests)
    budgets = [one["spec"] for one in of_kind(found, "PodDisruptionBudget")]
    for one in of_kind(found, "StatefulSet") if budgets else ():
        labels = one["spec"]["template"]["metadata"]["labels"]
        (budget,) = [
            each for each in budgets if each["selector"]["matchLabels"].items() <= labels.items()
        ]
        assert budget["maxUnavailable"] == 1


def test_brokers_of_a_set_keep_away_from_each_other_and_not_from_other_sets(helm: str) -> None:
    found = objects(rendered(helm, VALUES["large-values"]))
    for one in of_kind(found, "StatefulSet"):
        spec = one["spec"]["template"]
        affinity = spec["spec"]["affinity"]["podAntiAffinity"]
        terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
        keys_of = {term["topologyKey"] for term in terms}
        assert keys_of == {"kubernetes.io/hostname", "topology.kubernetes.io/zone"}
        for term in terms:
            assert (
                term["labelSelector"]["matchLabels"].items() <= spec["metadata"]["labels"].items()
            )
            assert term["labelSelector"]["matchLabels"]["mq/set"] in ("a", "b")


def test_pods_that_came_later_join_and_founders_keep_their_members(
    helm: str, tmp_path: Path
) -> None:
    found = objects(rendered(helm, VALUES["large-values"]))
    (grown,) = [one for one in of_kind(found, "StatefulSet") if one["spec"]["replicas"] == 5]
    broker = container(grown)
    assert broker["command"] == ["/bin/sh", "-ec"]
    # What stands in place of the broker says how it was started.
    (tmp_path / "mq").write_text('#!/bin/sh\necho "$@" $MQ_RAFT_JOIN $MQ_RAFT_MEMBERS\n')
    (tmp_path / "mq").chmod(0o755)
    said = {}
    for at, pod in enumerate(pods(grown)):
        variables = environment(grown, pod) | {"PATH": f"{tmp_path}:/usr/bin:/bin"}
        done = subprocess.run(
            [*broker["command"], *broker["args"]],
            env=variables,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        said[at] = done.stdout.split()
        options = {"MQ_RAFT_MEMBERS": said[at][-1], "MQ_NODE_ID": pod}
        if said[at][1] == "yes":
            options["MQ_RAFT_JOIN"] = "yes"
        raft_settings.from_config(config.load(None, options, {}))
    assert [len(words) for words in said.values()] == [2, 2, 2, 3, 3]
    assert [words[-1].count("=") for words in said.values()] == [3, 3, 3, 5, 5]


def test_the_image_runs_as_its_user_on_a_read_only_file_system(manifests: str) -> None:
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    found = objects(manifests)
    for one in [*of_kind(found, "StatefulSet"), *of_kind(found, "Deployment")]:
        spec = one["spec"]["template"]["spec"]
        security = spec["securityContext"]
        user, group = security["runAsUser"], security["fsGroup"]
        assert f"--gid {group} mq" in dockerfile
        assert f"--uid {user} " in dockerfile
        assert container(one)["securityContext"]["readOnlyRootFilesystem"] is True
        assert spec["automountServiceAccountToken"] is False
        # Variables of Services called mq would look like options.
        assert spec["enableServiceLinks"] is False


def test_secrets_are_keys_that_brokers_take(helm: str) -> None:
    (secret,) = of_kind(objects(rendered(helm, None)), "Secret")
    data = secret["stringData"]
    user, _, key = data["first-admin"].partition(":")
    assert (user, key) == ("root", data["root.key"])
    made = [keys.parse(data[name]) for name in ("root.key", "cluster.key")]
    assert None not in made
    assert len({*made}) == 2
    assert len(data["secret.key"]) >= 32
    assert secret["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_nothing_makes_keys_where_they_are_brought(helm: str) -> None:
    found = objects(rendered(helm, VALUES["secure-values"]))
    assert of_kind(found, "Secret") == []
    (stateful_set,) = of_kind(found, "StatefulSet")
    volumes = {
        one["name"]: one["secret"] for one in stateful_set["spec"]["template"]["spec"]["volumes"]
    }
    assert volumes["auth"]["secretName"] == "mq-keys"
    # Files of root that the group reads: what the broker takes for private.
    assert {one["defaultMode"] for one in volumes.values()} == {0o440}


def test_the_certificate_names_every_address_that_is_dialed(helm: str) -> None:
    found = objects(rendered(helm, VALUES["secure-values"]))
    (certificate,) = of_kind(found, "Certificate")
    names = set(certificate["spec"]["dnsNames"])
    (stateful_set,) = of_kind(found, "StatefulSet")
    for pod in pods(stateful_set):
        variables = environment(stateful_set, pod)
        options = config.load(None, variables, {})
        assert options.broker.advertised.rpartition(":")[0] in names
        assert options.raft.tls_cert == options.broker.tls_cert == "/tls/tls.crt"
        probe = container(stateful_set)["readinessProbe"]["httpGet"]
        assert (options.metrics.tls, probe["scheme"]) == ("on", "HTTPS")
    assert f"mq.{NAMESPACE}.svc" in names
    assert {"server auth", "client auth"} <= set(certificate["spec"]["usages"])
    (monitor,) = of_kind(found, "ServiceMonitor")
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["tlsConfig"]["serverName"] in names


def test_alerts_are_those_of_prometheus_and_their_labels_are_set(helm: str) -> None:
    found = objects(rendered(helm, VALUES["secure-values"]))
    (rule,) = of_kind(found, "PrometheusRule")
    assert rule["spec"] == yaml.safe_load(ALERTS.read_text())
    (monitor,) = of_kind(found, "ServiceMonitor")
    (endpoint,) = monitor["spec"]["endpoints"]
    set_labels = {one["targetLabel"]: one for one in endpoint["relabelings"]}
    assert set_labels["job"]["replacement"] == "mq"
    assert {"broker", "broker_set"} <= set_labels.keys()


def test_a_pod_hands_over_before_it_stops_with_time_to_spare(manifests: str) -> None:
    for one in of_kind(objects(manifests), "StatefulSet"):
        spec = one["spec"]["template"]["spec"]
        *_, script = container(one)["lifecycle"]["preStop"]["exec"]["command"]
        set_name = one["metadata"]["labels"]["mq/set"]
        assert script.startswith(
            f'mq cluster transfer-leader --from "$MQ_NODE_ID" --set {set_name} --timeout 5'
        )
        assert "\n" not in script
        waits_s = int(script.rpartition("sleep ")[2])
        drain_s = config.load(None, {}, {}).broker.drain_ms / 1000
        assert waits_s + 5 + drain_s < spec["terminationGracePeriodSeconds"]


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("sets[0].name=A_b", "sets"),
        ("sets[0].founders=null", "founders"),
        ("config.broker.advertised=x:1", "config"),
        ("config.raft.members=x", "config"),
        ("auth.mode=off", "auth"),
        ("external.enabled=true", "domain"),
    ],
)
def test_values_that_cannot_work_are_refused(helm: str, flag: str, said: str) -> None:
    command = [helm, "template", RELEASE, str(CHART), *AGAINST]
    done = run(
        *command, "--set", "sets[0].name=a,sets[0].replicas=3,sets[0].founders=3", "--set", flag
    )
    assert done.returncode != 0
    assert said in done.stderr


def test_the_chart_is_of_this_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == project["version"]


def linked() -> Iterator[Path]:
    return (path for path in (CHART / "files").iterdir())


def test_the_chart_has_no_copies_of_other_files() -> None:
    """Helm follows links when it packs a chart; a copy would go stale."""
    assert {path.name for path in linked()} == {"alerts.yml", "dashboard.json"}
    for path in linked():
        assert path.is_symlink()
        assert path.resolve().is_relative_to(ROOT / "deploy")
