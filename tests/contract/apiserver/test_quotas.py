"""Quotas, limit ranges and priorities against a real master, for clients and for controllers."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.testbed.apiserver.untyped_client import UntypedClient


class Project:
    """A namespace with quotas and bounds."""

    def __init__(self, api_client: UntypedClient, name: str) -> None:
        self.api_client = api_client
        self.name = name
        self.at = f"/api/v1/namespaces/{name}"

    async def begin(self, hard: dict[str, Any] | None = None, **limit: Any) -> None:
        await self.api_client.create("/api/v1/namespaces", name=self.name)
        if hard is not None:
            await self.api_client.create(f"{self.at}/resourcequotas", name="q", spec={"hard": hard})
            await self.api_client.wait_until(f"{self.at}/resourcequotas/q", lambda quota: "used" in quota["status"])
        if limit:
            await self.api_client.create(f"{self.at}/limitranges", name="l", spec={"limits": [limit]})

    async def pod(self, name: str, resources: dict[str, Any] | None = None, dry: bool = False, **spec: Any) -> Any:
        container = {"name": "c", "image": "i", "resources": resources or {}}
        document = {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}
        return await self.api_client.request("POST", f"{self.at}/pods", document, **({"dryRun": "All"} if dry else {}))

    async def used(self) -> dict[str, str]:
        actual: dict[str, str] = (await self.api_client.request("GET", f"{self.at}/resourcequotas/q"))["status"]["used"]
        return actual

    async def until_used(self, **used: str) -> None:
        wanted = {name.replace("_", "."): text for name, text in used.items()}
        path = f"{self.at}/resourcequotas/q"
        await self.api_client.wait_until(path, lambda quota: wanted.items() <= quota["status"]["used"].items())


async def test_fifty_concurrent_creates_never_exceed_the_quota(api_client: UntypedClient) -> None:
    red = Project(api_client, "red")
    await red.begin({"pods": 7, "requests.cpu": "1"})
    answers = await asyncio.gather(*(red.pod(f"p{n}", {"requests": {"cpu": "100m"}}) for n in range(50)))
    assert sum(answer["kind"] == "Pod" for answer in answers) == 7
    refused = [answer for answer in answers if answer["kind"] == "Status"]
    assert {(status["code"], status["reason"]) for status in refused} == {(403, "Forbidden")}
    assert "exceeded quota: q, requested: pods=1, used: pods=7, limited: pods=7" in refused[0]["message"]
    assert await red.used() == {"pods": "7", "requests.cpu": "700m"}
    assert len((await api_client.request("GET", f"{red.at}/pods"))["items"]) == 7
    await api_client.request(
        "DELETE", f"{red.at}/pods/{next(answer['metadata']['name'] for answer in answers if 'metadata' in answer)}"
    )
    assert (await red.pod("next", {"requests": {"cpu": "500m"}}))["message"].endswith(
        "exceeded quota: q, requested: requests.cpu=500m, used: requests.cpu=600m, limited: requests.cpu=1"
    ), "what has just gone is not counted"
    assert (await red.pod("next", {"requests": {"cpu": "400m"}}, dry=True))["kind"] == "Pod"
    assert (await red.pod("next", {"requests": {"cpu": "400m"}}))["kind"] == "Pod"


async def test_quota_is_never_exceeded_while_clients_and_controllers_write(api_client: UntypedClient) -> None:
    """Clients and a replica set make pods, clients delete theirs, the quota moves; a watch tells every state."""
    storm = Project(api_client, "storm")
    await storm.begin({"pods": 6})
    begin = (await api_client.request("GET", f"{storm.at}/pods"))["metadata"]["resourceVersion"]
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    sets = "/apis/apps/v1/namespaces/storm/replicasets"
    spec = {"replicas": 4, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    await api_client.create(sets, name="r", spec=spec)

    async def client(number: int) -> list[str]:
        reported = []
        for turn in range(6):
            reported.append((await storm.pod(f"p{number}-{turn}"))["kind"])
            await api_client.request("DELETE", f"{storm.at}/pods/p{number}-{turn}")
            if number == 0:
                await api_client.request("PATCH", f"{sets}/r", {"spec": {"replicas": 1 + 3 * (turn % 2)}})
                hard = {"spec": {"hard": {"pods": str(6 - turn % 2)}}}
                await api_client.request("PATCH", f"{storm.at}/resourcequotas/q", hard)
        return reported

    answers = [kind for kinds in await asyncio.gather(*map(client, range(10))) for kind in kinds]
    assert set(answers) == {"Pod", "Status"}
    events = await api_client.watch(f"{storm.at}/pods", begin)
    there, most = set[str](), 0
    for event in events:
        name = event["object"]["metadata"]["name"]
        there = there - {name} if event["type"] == "DELETED" else there | {name}
        most = max(most, len(there))
    assert most <= 6
    assert len([event for event in events if event["type"] == "ADDED"]) > 10, "they come and go"
    await storm.until_used(pods=str(len((await api_client.request("GET", f"{storm.at}/pods"))["items"])))


async def test_every_counted_resource_is_charged_and_released(api_client: UntypedClient) -> None:
    blue = Project(api_client, "blue")
    counts = {"services": 2, "services.nodeports": 1, "services.loadbalancers": 0, "secrets": 1, "configmaps": 2}
    more = {"count/replicasets.apps": 0, "persistentvolumeclaims": 1, "requests.storage": "10Gi"}
    await blue.begin({**counts, **more, "replicationcontrollers": 0})
    service = {"ports": [{"port": 80}]}
    await api_client.create(f"{blue.at}/services", name="one", spec={**service, "type": "NodePort"})
    refused = await api_client.request(
        "POST", f"{blue.at}/services", {"metadata": {"name": "two"}, "spec": {**service, "type": "NodePort"}}
    )
    assert "requested: services.nodeports=1, used: services.nodeports=1, limited: services" in refused["message"]
    await api_client.create(f"{blue.at}/services", name="two", spec=service)
    refused = await api_client.request("PATCH", f"{blue.at}/services/two", {"spec": {"type": "NodePort"}})
    assert "exceeded quota: q, requested: services.nodeports=1" in refused["message"]
    refused = await api_client.request("PATCH", f"{blue.at}/services/two", {"spec": {"type": "LoadBalancer"}})
    assert "requested: services.loadbalancers=1,services.nodeports=1" in refused["message"]
    await api_client.request("DELETE", f"{blue.at}/services/one")
    assert (await api_client.request("PATCH", f"{blue.at}/services/two", {"spec": {"type": "NodePort"}}))[
        "kind"
    ] == "Service"
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "4Gi"}}}
    await api_client.create(f"{blue.at}/persistentvolumeclaims", name="c", spec=claim)
    await blue.until_used(services="1", services_nodeports="1", requests_storage="4Gi", configmaps="1")
    for plural, group, spec in (
        ("replicationcontrollers", "/api/v1", {"selector": {"a": "b"}}),
        ("replicasets", "/apis/apps/v1", {"selector": {"matchLabels": {"a": "b"}}}),
    ):
        template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        body = {"metadata": {"name": "r"}, "spec": {**spec, "template": template}}
        refused = await api_client.request("POST", f"{group}/namespaces/blue/{plural}", body)
        assert "exceeded quota: q" in refused["message"], refused


async def test_terminated_pods_release_their_quota(api_client: UntypedClient) -> None:
    green = Project(api_client, "green")
    await green.begin({"pods": 1, "count/pods": 2, "limits.memory": "1Gi"})
    refused = await green.pod("a")
    assert refused["message"] == ('pods "a" is forbidden: failed quota: q: must specify limits.memory for: c')
    limits = {"limits": {"memory": "1Gi"}}
    assert (await green.pod("a", limits))["kind"] == "Pod"
    assert (await green.pod("b", limits))["kind"] == "Status"
    await api_client.request("PATCH", f"{green.at}/pods/a/status", {"status": {"phase": "Succeeded"}})
    assert (await green.pod("b", limits))["kind"] == "Pod"
    await green.until_used(**{"pods": "1", "count/pods": "2", "limits.memory": "1Gi"})
    assert "requested: count/pods=1" in (await green.pod("c", limits))["message"]


async def test_scoped_quota_counts_matching_pods_only(api_client: UntypedClient) -> None:
    scoped = Project(api_client, "scoped")
    await scoped.begin()
    spec = {"hard": {"pods": 1}, "scopes": ["BestEffort"]}
    await api_client.create(f"{scoped.at}/resourcequotas", name="q", spec=spec)
    assert (await scoped.pod("a"))["kind"] == "Pod"
    assert (await scoped.pod("b", {"requests": {"cpu": "1"}}))["kind"] == "Pod"
    assert "exceeded quota: q" in (await scoped.pod("c"))["message"]


async def test_limit_range_sets_defaults_and_rejects(api_client: UntypedClient) -> None:
    bound = Project(api_client, "bound")
    most = {"cpu": "1", "memory": "1Gi"}
    await bound.begin(type="Container", default={"cpu": "500m"}, defaultRequest={"cpu": "100m"}, max=most)
    created = await bound.pod("a")
    resources = {"limits": {"cpu": "500m", "memory": "1Gi"}, "requests": {"cpu": "100m", "memory": "1Gi"}}
    assert created["spec"]["containers"][0]["resources"] == resources
    assert created["status"]["qosClass"] == "Burstable"
    assert created["metadata"]["annotations"]["kubernetes.io/limit-ranger"] == (
        "LimitRanger plugin set: cpu, memory request for container c; cpu, memory limit for container c"
    )
    refused = await bound.pod("b", {"limits": {"cpu": "2", "memory": "2Gi"}})
    assert (refused["code"], refused["message"]) == (
        403,
        'pods "b" is forbidden: [maximum cpu usage per Container is 1, but limit is 2, '
        "maximum memory usage per Container is 1Gi, but limit is 2Gi]",
    )
    wrong = await bound.pod("b", {"requests": {"cpu": "700m"}})
    assert (wrong["code"], wrong["reason"]) == (422, "Invalid"), "more than the limit that was filled in"


async def test_pod_priority_is_set_from_its_priority_class(api_client: UntypedClient) -> None:
    ranks = Project(api_client, "ranks")
    await ranks.begin()
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    plain = (await ranks.pod("plain"))["spec"]
    assert (plain.get("priority", 0), plain["preemptionPolicy"]) == (0, "PreemptLowerPriority")
    assert "priorityClassName" not in plain
    critical = (await ranks.pod("critical", priorityClassName="system-node-critical"))["spec"]
    assert critical["priority"] == 2000001000
    refused = await ranks.pod("none", priorityClassName="none")
    assert refused["message"] == 'pods "none" is forbidden: no PriorityClass with name none was found'
    refused = await ranks.pod("own", priority=7)
    assert (
        "the integer value of priority (7) must not be provided in pod spec; priority admission" in refused["message"]
    )
    await api_client.create(classes, name="usual", value=5, globalDefault=True, preemptionPolicy="Never")
    usual = (await ranks.pod("usual"))["spec"]
    assert (usual["priority"], usual["priorityClassName"], usual["preemptionPolicy"]) == (5, "usual", "Never")
    second = await api_client.request(
        "POST", classes, {"metadata": {"name": "second"}, "value": 6, "globalDefault": True}
    )
    assert "PriorityClass usual is already marked as default. Only one default can exist" in second["message"]
    await api_client.request("DELETE", f"{classes}/usual")


async def test_quota_rejects_controllers_and_they_report_it(api_client: UntypedClient) -> None:
    small = Project(api_client, "small")
    await small.begin({"pods": 2})
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"replicas": 3, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    deployments = "/apis/apps/v1/namespaces/small/deployments"
    await api_client.create(deployments, name="web", spec=spec)

    def failure_condition(workload: Any) -> Any:
        conditions = workload["status"].get("conditions", ())
        return next((condition for condition in conditions if condition["type"] == "ReplicaFailure"), None)

    (mine,) = (
        await api_client.wait_until("/apis/apps/v1/namespaces/small/replicasets", lambda actual: actual["items"])
    )["items"]
    path = f"/apis/apps/v1/namespaces/small/replicasets/{mine['metadata']['name']}"
    failure = failure_condition(await api_client.wait_until(path, failure_condition))
    assert (failure["status"], failure["reason"]) == ("True", "FailedCreate")
    assert "is forbidden: exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2" in failure["message"]
    assert (
        failure_condition(await api_client.wait_until(f"{deployments}/web", failure_condition))["reason"]
        == "FailedCreate"
    )
    assert (await small.used())["pods"] == "2"
    events = (await api_client.request("GET", f"{small.at}/events"))["items"]
    reported = [event for event in events if event["reason"] == "FailedCreate"]
    assert reported
    assert len(reported) < 5, "it is not tried again and again"
    assert reported[0]["message"].startswith('Error creating: pods "web-')
    assert reported[0]["involvedObject"]["kind"] == "ReplicaSet"
    await api_client.request("PATCH", f"{small.at}/resourcequotas/q", {"spec": {"hard": {"pods": "5"}}})
    await small.until_used(pods="3")
    await api_client.wait_until(
        path, lambda replica_set: failure_condition(replica_set) is None and replica_set["status"]["replicas"] == 3
    )
    await api_client.wait_until(f"{deployments}/web", lambda deployment: failure_condition(deployment) is None)


async def test_job_rejected_by_quota_resumes_when_the_quota_allows(api_client: UntypedClient) -> None:
    work = Project(api_client, "work")
    await work.begin({"pods": 0})
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
    jobs = "/apis/batch/v1/namespaces/work/jobs"
    await api_client.create(jobs, name="j", spec={"template": template})
    await api_client.wait_until(
        f"{work.at}/events", lambda actual: any(event["reason"] == "FailedCreate" for event in actual["items"])
    )
    await api_client.wait_until(f"{jobs}/j", lambda job: job["status"].get("active", 0) == 0)
    await api_client.request("PATCH", f"{work.at}/resourcequotas/q", {"spec": {"hard": {"pods": "1"}}})
    await api_client.wait_until(f"{jobs}/j", lambda job: job["status"].get("active", 0) == 1)


async def test_workload_rejected_by_quota_reports_it_in_its_conditions(api_client: UntypedClient) -> None:
    words = Project(api_client, "words")
    await words.begin({"pods": 0, "count/replicasets.apps": 0})
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    for plural in ("statefulsets", "deployments"):
        await api_client.create(f"/apis/apps/v1/namespaces/words/{plural}", name="web", spec=spec)

    def messages_by_reason(actual: Any) -> dict[tuple[str, str], str]:
        events = [event for event in actual["items"] if event["type"] == "Warning"]
        return {(event["involvedObject"]["kind"], event["reason"]): event["message"] for event in events}

    messages = messages_by_reason(
        await api_client.wait_until(f"{words.at}/events", lambda event_list: len(messages_by_reason(event_list)) == 2)
    )
    begin = messages["StatefulSet", "FailedCreate"]
    assert begin.startswith(
        'create Pod web-0 in StatefulSet web failed error: pods "web-0" is forbidden: exceeded quota'
    )
    assert messages["Deployment", "ReplicaSetCreateError"].startswith('Failed to create new replica set "web-')


async def test_stateful_set_creates_no_pod_before_its_claims(api_client: UntypedClient) -> None:
    project = Project(api_client, "kept")
    await project.begin({"persistentvolumeclaims": 0})
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    spec = {
        "selector": {"matchLabels": {"a": "b"}},
        "template": template,
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": claim}],
    }
    await api_client.create("/apis/apps/v1/namespaces/kept/statefulsets", name="db", spec=spec)

    def refused(actual: Any) -> Any:
        return [event for event in actual["items"] if event["reason"] == "FailedCreate"]

    (event, *_) = refused(await api_client.wait_until(f"{project.at}/events", refused))
    assert event["involvedObject"]["kind"] == "StatefulSet"
    assert 'persistentvolumeclaims "data-db-0" is forbidden: exceeded quota: q' in event["message"]
    assert (await api_client.request("GET", f"{project.at}/pods"))["items"] == []
    await api_client.request(
        "PATCH", f"{project.at}/resourcequotas/q", {"spec": {"hard": {"persistentvolumeclaims": "1"}}}
    )
    await api_client.wait_until(f"{project.at}/pods", lambda pod_list: len(pod_list["items"]) == 1)
    assert len((await api_client.request("GET", f"{project.at}/persistentvolumeclaims"))["items"]) == 1


async def resize(project: Project, resources: dict[str, Any], **other: Any) -> Any:
    """Change the container of the pod `p` through the subresource resize. Return the response."""
    pod = await project.api_client.request("GET", f"{project.at}/pods/p")
    del pod["metadata"]["resourceVersion"]  # The scheduler writes the status meanwhile.
    pod["spec"]["containers"][0] |= {"resources": resources, **other}
    return await project.api_client.request("PUT", f"{project.at}/pods/p/resize", pod)


def cpu(request: str, limit: str) -> dict[str, Any]:
    return {"requests": {"cpu": request}, "limits": {"cpu": limit}}


async def test_resize_of_a_pod_is_charged_and_bounded_and_changes_nothing_else(api_client: UntypedClient) -> None:
    grown = Project(api_client, "grown")
    await grown.begin({"requests.cpu": "500m"}, type="Container", max={"cpu": "2"})
    pod = await grown.pod("p", cpu("100m", "1"))
    assert pod["metadata"]["generation"] == 1
    answer = await resize(grown, cpu("400m", "1"))
    assert answer["spec"]["containers"][0]["resources"] == cpu("400m", "1")
    assert answer["metadata"]["generation"] == 2
    assert await grown.used() == {"requests.cpu": "400m"}
    for resources, other, code, words in (
        (cpu("600m", "1"), {}, 403, "exceeded quota: q, requested: requests.cpu=200m, used: requests.cpu=400m"),
        (cpu("400m", "3"), {}, 403, "maximum cpu usage per Container is 2, but limit is 3"),
        (cpu("400m", "1"), {"image": "other"}, 422, "only cpu and memory resources are mutable"),
        ({"requests": {"cpu": "400m"}}, {}, 422, "cannot be removed"),
        (cpu("2", "1"), {}, 422, "no more than the limit 1 is accepted"),
    ):
        refused = await resize(grown, resources, **other)
        assert (refused.get("code"), words in refused.get("message", "")) == (code, True), refused
    path = f"{grown.at}/pods/p"
    assert (await api_client.request("GET", f"{path}/resize"))["spec"] == answer["spec"]
    labelled = await api_client.request("PATCH", path, {"metadata": {"labels": {"a": "b"}}})
    assert labelled["metadata"]["labels"] == {"a": "b"}
    labelled["spec"]["containers"][0]["resources"] = cpu("300m", "1")
    assert (await api_client.request("PUT", path, labelled))["code"] == 422, "only the subresource changes resources"
    assert (await resize(grown, cpu("100m", "1")))["metadata"]["generation"] == 3
    await grown.until_used(requests_cpu="100m")


async def test_resize_may_not_change_the_quality_of_service_class(api_client: UntypedClient) -> None:
    steady = Project(api_client, "steady")
    await steady.begin()
    small, large = {"cpu": "100m", "memory": "64Mi"}, {"cpu": "200m", "memory": "64Mi"}
    await steady.pod("p", {"requests": small, "limits": small})
    refused = await resize(steady, {"requests": small, "limits": large})
    assert refused.get("code") == 422, refused
    assert "Pod QOS Class may not change as a result of resizing" in refused["message"]
    assert (await resize(steady, {"requests": large, "limits": large}))["metadata"]["generation"] == 2
