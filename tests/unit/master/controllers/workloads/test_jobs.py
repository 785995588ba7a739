"""Jobs, their indexes and failure policies."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from api.core.pod import ContainerState, ContainerStateTerminated, ContainerStatus, Pod
from api.meta.types import Condition
from api.validation.registry import decode
from master.controllers.actions import Delete
from master.controllers.workloads import jobs
from master.controllers.workloads.job_tracking import TRACKING_FINALIZER, backoff, has_finalizer
from master.controllers.workloads.pod_control import MAX_PODS_PER_PASS, is_active
from master.errors import StatusError
from master.registry import strategy
from master.resources import jobs as job_indexes
from master.resources.jobs import JOBS, Job, completion_index, has_condition, is_job_finished
from master.resources.metadata import format_time
from tests.unit.master.simulation import START, Simulation

TEMPLATE = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "i"}]}}


def job(**spec: Any) -> Job:
    document = {"metadata": {"name": "work", "namespace": "p"}, "spec": {"template": TEMPLATE, **spec}}
    result, problems, _ = decode(Job, document, JOBS.rules)
    assert not problems, problems
    assert result is not None
    return result


class Work(Simulation):
    """A simulation with one job, whose pods end by calls of the test."""

    def __init__(self, **spec: Any) -> None:
        super().__init__()
        self.put(job(**spec))

    @property
    def job(self) -> Job:
        result: Job = self.all("Job")[0]
        return result

    def active(self) -> list[Pod]:
        return [pod for pod in self.pods() if is_active(pod)]

    def respec(self, **changes: Any) -> None:
        self.change(replace(self.job, spec=replace(self.job.spec, **changes)))

    def run(self, pod: Pod) -> None:
        self.ready(replace(pod, spec=replace(pod.spec, node_name="n")))

    def finish(self, pod: Pod, code: int = 0) -> None:
        ended = ContainerStateTerminated(exit_code=code, finished_at=format_time(self.now))
        container_status = ContainerStatus(name="main", state=ContainerState(terminated=ended))
        status = replace(
            pod.status, phase="Failed" if code else "Succeeded", container_statuses=(container_status,), conditions=()
        )
        self.change(replace(pod, spec=replace(pod.spec, node_name="n"), status=status))

    def finish_all(self, code: int = 0) -> None:
        for pod in self.active():
            self.finish(pod, code)
        self.settle()

    def let_go(self, pod: Pod) -> None:
        """Remove a terminating pod, as its node does after its end."""
        if pod.metadata.deletion_timestamp:
            self.delete(pod, grace=0)

    def wait(self, seconds: float) -> None:
        self.now += datetime.timedelta(seconds=seconds)
        self.settle()

    @property
    def numbers(self) -> tuple[int, int, int]:
        status = self.job.status
        return status.active, status.succeeded, status.failed

    @property
    def began(self) -> str | None:
        return self.job.status.start_time

    @property
    def conditions(self) -> dict[str, tuple[str, str]]:
        return {condition.type: (condition.status, condition.reason) for condition in self.job.status.conditions}


def test_job_runs_one_pod_to_completion() -> None:
    work = Work()
    work.settle()
    (pod,) = work.pods()
    uid = work.job.metadata.uid
    assert pod.metadata.finalizers == (TRACKING_FINALIZER,)
    assert pod.metadata.labels == {
        "batch.kubernetes.io/controller-uid": uid,
        "batch.kubernetes.io/job-name": "work",
        "controller-uid": uid,
        "job-name": "work",
    }
    assert work.numbers == (1, 0, 0)
    assert JOBS.cells(work.job, work.now)[:5] == ("work", "Running", "0/1", "0s", "0s")
    work.run(pod)
    work.settle()
    assert work.job.status.ready == 1
    work.now += datetime.timedelta(seconds=3)
    work.finish_all()
    assert work.numbers == (0, 1, 0)
    assert work.began == format_time(START)
    assert work.job.status.completion_time == format_time(work.now)
    both = ("True", "CompletionsReached")
    assert work.conditions == {"SuccessCriteriaMet": both, "Complete": both}
    assert JOBS.cells(work.job, work.now + datetime.timedelta(60))[1:4] == ("Complete", "1/1", "3s")
    assert [event.reason for event in work.all("Event")] == ["Completed"]
    (remaining,) = work.pods()
    assert not has_finalizer(remaining), "a pod that has been counted can be deleted"


def test_job_runs_parallelism_pods_up_to_remaining_completions() -> None:
    work = Work(completions=5, parallelism=2)
    work.settle()
    seen = []
    while not is_job_finished(work.job):
        seen.append(len(work.active()))
        work.finish_all()
    assert seen == [2, 2, 1]
    assert work.job.status.succeeded == 5


def test_job_without_completions_creates_no_pod_after_the_first_success() -> None:
    work = Work(parallelism=3)
    work.settle()
    first, *others = work.active()
    work.finish(first)
    work.settle()
    assert len(work.active()) == 2
    assert JOBS.cells(work.job, work.now)[2] == "1/1 of 3"
    assert not is_job_finished(work.job)
    for pod in others:
        work.finish(pod)
    work.settle()
    assert has_condition(work.job, "Complete")


def test_job_retries_failures_with_back_off_up_to_the_limit() -> None:
    work = Work(backoffLimit=2)
    work.settle()
    created = []
    for _ in range(3):
        work.finish_all(code=1)
        begun = work.now
        while not work.active() and not is_job_finished(work.job):
            work.wait(1)
        created.append((work.now - begun).total_seconds())
    assert created == [10, 20, 0]
    assert work.numbers == (0, 0, 3)
    why = ("True", "BackoffLimitExceeded")
    assert work.conditions == {"FailureTarget": why, "Failed": why}
    assert JOBS.cells(work.job, work.now)[1] == "Failed"
    assert [backoff(count) for count in (0, 1, 2, 7, 100)] == [0, 10, 20, 600, 600]


def test_job_back_off_resets_after_a_success() -> None:
    work = Work(completions=3, parallelism=2, backoffLimit=9)
    work.settle()
    first, second = work.active()
    work.finish(first, 1)
    work.settle()
    assert len(work.active()) == 1
    work.now += datetime.timedelta(seconds=1)
    work.finish(second)
    work.settle()
    assert len(work.active()) == 2


def test_failed_job_ends_its_pods_and_counts_them_failed() -> None:
    work = Work(completions=3, parallelism=3, backoffLimit=0)
    work.settle()
    first, second, _ = work.active()
    work.run(second)
    work.finish(first, 1)
    work.settle()
    assert work.conditions == {"FailureTarget": ("True", "BackoffLimitExceeded")}
    assert JOBS.cells(work.job, work.now)[1] == "FailureTarget"
    assert work.job.status.terminating == 1
    for pod in work.pods():
        work.let_go(pod)
    work.settle()
    assert has_condition(work.job, "Failed")
    assert work.numbers == (0, 0, 3)


def test_job_fails_at_its_active_deadline() -> None:
    work = Work(activeDeadlineSeconds=30, backoffLimit=9)
    work.settle()
    work.wait(29)
    assert not work.conditions
    work.wait(1)
    assert work.conditions["Failed"] == ("True", "DeadlineExceeded")
    assert not work.pods(), "none was on a node"


def test_container_restarts_count_towards_the_back_off_limit() -> None:
    template = {"spec": {**TEMPLATE["spec"], "restartPolicy": "OnFailure"}}
    work = Work(backoffLimit=2, template=template)
    work.settle()
    for count in (1, 2):
        (pod,) = work.active()
        status = ContainerStatus(name="main", restart_count=count)
        work.change(replace(pod, status=replace(pod.status, phase="Running", container_statuses=(status,))))
        work.settle()
        assert ("FailureTarget" in work.conditions) == (count == 2)


def test_finished_job_is_deleted_after_its_ttl() -> None:
    work = Work(ttlSecondsAfterFinished=60)
    work.settle()
    work.finish_all()
    work.wait(59)
    assert work.all("Job")
    work.wait(1)
    assert not [*work.all("Job"), *work.pods()]


def test_suspended_job_has_no_pods_and_no_failures() -> None:
    work = Work(completions=2, parallelism=2, activeDeadlineSeconds=50)
    work.settle()
    work.run(work.active()[0])
    work.respec(suspend=True)
    work.settle()
    assert work.conditions == {"Suspended": ("True", "JobSuspended")}
    assert not work.began
    assert (work.numbers, work.job.status.terminating) == ((0, 0, 0), 1)
    assert JOBS.cells(work.job, work.now)[1:4] == ("Suspended", "0/2", "")
    for pod in work.pods():
        work.let_go(pod)
    work.wait(100)
    assert not work.pods()
    work.respec(suspend=False)
    work.settle()
    assert work.conditions == {"Suspended": ("False", "JobResumed")}
    assert work.began == format_time(work.now)
    assert len(work.active()) == 2
    work.finish_all()
    assert work.numbers == (0, 2, 0)


def test_job_parallelism_change_deletes_or_creates_pods() -> None:
    work = Work(completions=9, parallelism=4)
    work.settle()
    work.respec(parallelism=1)
    work.settle()
    assert work.numbers == (1, 0, 0)
    work.respec(parallelism=3)
    work.settle()
    assert work.numbers == (3, 0, 0)


@pytest.mark.parametrize(("policy", "at_once"), [("TerminatingOrFailed", True), ("Failed", False)])
def test_pod_replacement_policy_decides_when_deleted_pods_are_replaced(policy: str, at_once: bool) -> None:
    work = Work(podReplacementPolicy=policy)
    work.settle()
    work.run(work.active()[0])
    work.delete(work.active()[0])
    work.settle()
    assert (len(work.active()), work.job.status.failed) == ((1, 1) if at_once else (0, 0))
    assert work.job.status.terminating == 1
    for pod in work.pods():
        work.let_go(pod)
    work.settle()
    assert (len(work.active()), work.job.status.failed) == (1, 1)


# --- indexes ----------------------------------------------------------------------------------------------------------


def test_indexed_job_pod_knows_its_index() -> None:
    work = Work(completions=4, parallelism=3, completionMode="Indexed")
    work.settle()
    assert sorted(pod.spec.hostname for pod in work.active()) == ["work-0", "work-1", "work-2"]
    pod = next(pod for pod in work.active() if completion_index(pod) == 1)
    assert pod.metadata.name.startswith("work-1-")
    assert pod.metadata.labels["batch.kubernetes.io/job-completion-index"] == "1"
    (variable,) = pod.spec.containers[0].env
    assert variable.name == "JOB_COMPLETION_INDEX"
    assert variable.value_from is not None
    assert variable.value_from.field_ref is not None
    assert variable.value_from.field_ref.field_path == "metadata.labels['batch.kubernetes.io/job-completion-index']"
    for pod in work.active():
        if completion_index(pod) != 1:
            work.finish(pod)
    work.settle()
    assert work.job.status.completed_indexes == "0,2"
    assert sorted(map(str, map(completion_index, work.active()))) == ["1", "3"]
    work.finish_all()
    assert work.job.status.completed_indexes == "0-3"
    assert has_condition(work.job, "Complete")


def test_job_creates_pods_in_batches() -> None:
    work = Work(completions=100_000, parallelism=100_000, completionMode="Indexed")
    work.step()
    assert work.job.status.active == len(work.active()) == MAX_PODS_PER_PASS


def test_indexed_job_completions_may_grow_and_shrink() -> None:
    work = Work(completions=2, parallelism=2, completionMode="Indexed")
    work.settle()
    work.respec(completions=4, parallelism=4)
    work.settle()
    assert len(work.active()) == 4
    work.respec(completions=1, parallelism=1)
    work.settle()
    assert list(map(completion_index, work.active())) == [0]


def test_failed_index_does_not_fail_other_indexes() -> None:
    work = Work(completions=2, parallelism=2, completionMode="Indexed", backoffLimitPerIndex=1)
    work.settle()
    for attempt in range(2):
        (pod,) = (pod for pod in work.active() if completion_index(pod) == 0)
        assert pod.metadata.annotations["batch.kubernetes.io/job-index-failure-count"] == str(attempt)
        work.finish(pod, 1)
        work.settle()
        assert len(work.active()) == 1, "the other index goes on"
        work.wait(10)
    assert work.job.status.failed_indexes == "0"
    assert not is_job_finished(work.job)
    work.finish_all()
    assert work.conditions["Failed"] == ("True", "FailedIndexes")
    assert work.numbers == (0, 1, 2)
    assert not any(map(has_finalizer, work.pods()))


def test_max_failed_indexes_fails_the_job() -> None:
    work = Work(completions=3, parallelism=3, completionMode="Indexed", backoffLimitPerIndex=0, maxFailedIndexes=1)
    work.settle()
    first, second, _ = work.active()
    work.finish(first, 1)
    work.settle()
    assert not work.conditions
    work.finish(second, 1)
    work.settle()
    assert work.conditions["Failed"] == ("True", "MaxFailedIndexesExceeded")


POLICIES = [
    ([{"succeededCount": 2}], [2, 0], 0),
    ([{"succeededIndexes": "1-2"}], [0, 2, 1], 0),
    ([{"succeededIndexes": "3"}, {"succeededIndexes": "0-2", "succeededCount": 1}], [2], 1),
]


@pytest.mark.parametrize(("rules", "order", "rule"), POLICIES)
def test_success_policy_completes_the_job(rules: list[dict[str, Any]], order: list[int], rule: int) -> None:
    work = Work(completions=4, parallelism=4, completionMode="Indexed", successPolicy={"rules": rules})
    work.settle()
    for index in order:
        assert not work.conditions
        (pod,) = (pod for pod in work.active() if completion_index(pod) == index)
        work.finish(pod)
        work.settle()
    both = ("True", "SuccessPolicy")
    assert work.conditions == {"SuccessCriteriaMet": both, "Complete": both}
    assert {condition.message for condition in work.job.status.conditions} == {f"Matched rules at index {rule}"}
    assert work.numbers == (0, len(order), 0)


def test_job_managed_by_another_controller_is_not_changed() -> None:
    work = Work(managedBy="acme.io/queue")
    work.settle()
    assert (work.pods(), work.job.status.start_time) == ([], None)
    work = Work(managedBy="kubernetes.io/job-controller")
    work.settle()
    assert len(work.pods()) == 1


INDEXES = [("", []), ("0", [0]), ("0,1", [0, 1]), ("0-2", [0, 1, 2]), ("0,2-4,7", [0, 2, 3, 4, 7])]


@pytest.mark.parametrize(("text", "indexes"), INDEXES)
def test_completed_indexes_are_formatted(text: str, indexes: list[int]) -> None:
    assert job_indexes.format_indexes(indexes) == text
    assert job_indexes.parse_indexes(text, 100) == frozenset(indexes)


@given(st.sets(st.integers(0, 40)))
def test_formatted_indexes_are_parsed_back(indexes: set[int]) -> None:
    assert job_indexes.parse_indexes(job_indexes.format_indexes(indexes), 41) == indexes
    assert job_indexes.parse_indexes(job_indexes.format_indexes(indexes), 7) == {
        index for index in indexes if index < 7
    }


@pytest.mark.parametrize("text", ["", "x", "1,", "2,1", "1,1", "0-2,2", "3-2", "9", "8-9", "-1"])
def test_invalid_index_list_is_rejected(text: str) -> None:
    assert not job_indexes.is_index_list(text, 9)
    assert job_indexes.is_index_list("0,2-4,7-8", 9)


@given(st.text("0123456789,-x"))
def test_invalid_indexes_are_ignored(text: str) -> None:
    assert all(0 <= index < 5 for index in job_indexes.parse_indexes(text, 5))


# --- what a failure means ---------------------------------------------------------------------------------------------

RULES = [
    {"action": "FailJob", "onExitCodes": {"containerName": "main", "operator": "In", "values": [3, 42]}},
    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
    {"action": "Count", "onExitCodes": {"operator": "NotIn", "values": [7]}},
]


def test_pod_failure_policy_fails_the_job_by_exit_code() -> None:
    work = Work(podFailurePolicy={"rules": RULES})
    work.settle()
    (pod,) = work.active()
    work.finish_all(code=42)
    assert work.conditions["Failed"] == ("True", "PodFailurePolicy")
    (message,) = {condition.message for condition in work.job.status.conditions}
    assert message == (
        f"Container main for pod p/{pod.metadata.name} failed with exit code 42 matching FailJob rule at index 0"
    )


def test_pod_failure_policy_ignores_disruptions() -> None:
    work = Work(podFailurePolicy={"rules": RULES}, backoffLimit=0)
    work.settle()
    (pod,) = work.active()
    condition = Condition(type="DisruptionTarget", status="True")
    work.change(replace(pod, status=replace(pod.status, phase="Failed", conditions=(condition,))))
    work.settle()
    assert work.numbers == (1, 0, 0)
    work.finish_all(code=1)
    assert work.conditions["Failed"] == ("True", "BackoffLimitExceeded")


# --- chance -----------------------------------------------------------------------------------------------------------


def check_bounds(work: Work) -> None:
    spec, status = work.job.spec, work.job.status
    assert len(work.active()) <= (spec.parallelism or 0)
    assert status.succeeded <= (spec.completions or 0)
    if status.failed > (spec.backoff_limit or 0):
        assert "FailureTarget" in work.conditions


def one_pass(work: Work, killed: bool, withdrawn: list[str]) -> None:
    """Run one pass of the controller. A killed pass writes nothing, because a pass is one transaction."""
    actual = list(jobs.reconcile(work.all("Job"), work.pods(), work.now, {}))
    if killed:
        return
    ended = [write.object for write in actual if isinstance(write, Delete) and isinstance(write.object, Pod)]
    withdrawn += [pod.metadata.name for pod in ended if not has_finalizer(pod)]
    before = work.job.status
    work.apply(actual)
    after = work.job.status
    assert after.succeeded >= before.succeeded
    assert after.failed >= before.failed


EVENTS = st.tuples(
    st.sampled_from(["run", "succeed", "fail", "delete", "let go", "force", "pass", "pass", "killed", "wait"]),
    st.integers(0, 9),
)


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(0, 5),
    st.integers(0, 4),
    st.sampled_from(["TerminatingOrFailed", "Failed"]),
    st.sampled_from(["Indexed", "NonIndexed", "limit per index"]),
    st.lists(EVENTS, max_size=60),
)
def test_every_job_pod_is_counted_exactly_once(
    parallelism: int, completions: int, limit: int, policy: str, mode: str, events: list[tuple[str, int]]
) -> None:
    per_index = mode == "limit per index"
    work = Work(
        parallelism=parallelism,
        completions=completions,
        podReplacementPolicy=policy,
        completionMode="Indexed" if per_index else mode,
        **{"backoffLimitPerIndex" if per_index else "backoffLimit": limit},
    )
    withdrawn: list[str] = []
    seen: set[str] = set()
    for what, number in events:
        happen(work, what, number, withdrawn)
        seen |= {pod.metadata.name for pod in work.pods()}
        check_bounds(work)
    for _ in range(100):
        for pod in work.pods():
            work.let_go(pod)
        for pod in work.active():
            work.finish(pod)
        for _ in range(3):
            one_pass(work, False, withdrawn)
            seen |= {pod.metadata.name for pod in work.pods()}
            check_bounds(work)
        if is_job_finished(work.job):
            break
        work.now += datetime.timedelta(seconds=600)
    work.settle()
    status = work.job.status
    assert is_job_finished(work.job)
    assert not any(map(has_finalizer, work.pods()))
    assert not work.active()
    assert has_condition(work.job, "Complete") == (
        status.succeeded == completions and (per_index or status.failed <= limit)
    )
    numbers, counted = status.succeeded + status.failed, len(seen - set(withdrawn))
    assert numbers == counted or (mode != "NonIndexed" and numbers < counted), "two successes of an index are one"
    if per_index:
        lost = job_indexes.parse_indexes(status.failed_indexes, completions)
        assert len(lost) + status.succeeded == completions
        assert status.failed >= len(lost) * (limit + 1)


def happen(work: Work, what: str, number: int, withdrawn: list[str]) -> None:
    if what == "wait":
        work.now += datetime.timedelta(seconds=5 * number)
    elif what in ("pass", "killed"):
        one_pass(work, what == "killed", withdrawn)
    elif work.pods():
        pod = work.pods()[number % len(work.pods())]
        if what == "let go":
            work.let_go(pod)
        elif what == "force":
            work.delete(pod, grace=0)
        elif what == "delete":
            work.delete(pod)
        elif pod.status.phase not in ("Succeeded", "Failed"):
            work.run(pod) if what == "run" else work.finish(pod, int(what == "fail"))


# --- the door ---------------------------------------------------------------------------------------------------------

ALWAYS = {"spec": {**TEMPLATE["spec"], "restartPolicy": "Always"}}
WRONG = [
    ({"template": ALWAYS}, ["spec.template.spec.restartPolicy"]),
    ({"template": {"spec": {"containers": TEMPLATE["spec"]["containers"]}}}, ["spec.template.spec.restartPolicy"]),
    ({"completions": -1, "parallelism": -1}, ["spec.parallelism", "spec.completions"]),
    ({"backoffLimit": -1, "activeDeadlineSeconds": -1}, ["spec.activeDeadlineSeconds", "spec.backoffLimit"]),
    ({"ttlSecondsAfterFinished": -1}, ["spec.ttlSecondsAfterFinished"]),
    ({"completionMode": "Sorted"}, ["spec.completionMode"]),
    ({"completionMode": "Indexed"}, ["spec.completions"]),
    ({"backoffLimitPerIndex": 1}, ["spec.backoffLimitPerIndex"]),
    ({"selector": {"matchLabels": {"a": "b"}}}, ["spec.selector"]),
    ({"managedBy": "me"}, ["spec.managedBy"]),
    (
        {
            "completionMode": "Indexed",
            "completions": 10**12,
            "parallelism": 10**12,
            "successPolicy": {"rules": [{"succeededIndexes": "0-999999999"}]},
        },
        ["spec.parallelism", "spec.completions", "spec.successPolicy.rules[0].succeededIndexes"],
    ),
    ({"successPolicy": {"rules": [{"succeededCount": 1}]}}, ["spec.successPolicy"]),
    (
        {"completionMode": "Indexed", "completions": 3, "successPolicy": {"rules": [{"succeededIndexes": "1,3"}]}},
        ["spec.successPolicy.rules[0].succeededIndexes"],
    ),
    (
        {"completionMode": "Indexed", "completions": 3, "successPolicy": {"rules": [{"succeededCount": 4}, {}]}},
        ["spec.successPolicy.rules[0].succeededCount", "spec.successPolicy.rules[1]"],
    ),
    ({"manualSelector": True}, ["spec.selector"]),
    ({"manualSelector": True, "selector": {"matchLabels": {"a": "b"}}}, ["spec.template.metadata.labels"]),
    ({"podReplacementPolicy": "Never"}, ["spec.podReplacementPolicy"]),
    (
        {"podFailurePolicy": {"rules": RULES}, "podReplacementPolicy": "TerminatingOrFailed"},
        ["spec.podReplacementPolicy"],
    ),
    ({"podFailurePolicy": {"rules": [{"action": "Hide"}]}}, [*["spec.podFailurePolicy.rules[0]"]]),
    (
        {"podFailurePolicy": {"rules": [{"action": "Count", "onExitCodes": {"operator": "In", "values": [0]}}]}},
        ["spec.podFailurePolicy.rules[0].onExitCodes.values"],
    ),
]


@pytest.mark.parametrize(("spec", "paths"), WRONG, ids=str)
def test_invalid_job_is_rejected_by_path(spec: dict[str, Any], paths: list[str]) -> None:
    document = {"metadata": {"name": "work"}, "spec": {"template": TEMPLATE, **spec}}
    _, problems, _ = decode(Job, document, JOBS.rules)
    assert [error.path for error in problems if not error.path.endswith(".action")] == paths


def updated(old: Job, **spec: Any) -> Job:
    result: Job = strategy.prepare_update(JOBS, replace(old, spec=replace(old.spec, **spec)), old)
    return result


def test_job_template_is_immutable() -> None:
    work = Work(completions=2)
    work.settle()
    old = work.job
    assert updated(old, parallelism=4, backoff_limit=1, suspend=True, ttl_seconds_after_finished=1)
    for change in ({"completions": 3}, {"selector": None}, {"template": job(template=TEMPLATE).spec.template}):
        with pytest.raises(StatusError, match="field is immutable"):
            updated(old, **change)


def test_scheduling_directives_of_a_suspended_job_are_mutable() -> None:
    work = Work(suspend=True)
    work.settle()
    template = work.job.spec.template
    chosen = replace(template, spec=replace(template.spec, node_selector={"a": "b"}))
    assert updated(work.job, template=chosen)
    with pytest.raises(StatusError, match="field is immutable"):
        updated(work.job, template=replace(template, spec=replace(template.spec, containers=())))


def test_copied_job_gets_its_own_selector() -> None:
    work = Work()
    copy = replace(work.job, metadata=replace(work.job.metadata, name="copy"))
    second = work.put(copy)
    assert second.spec.selector.match_labels == {"batch.kubernetes.io/controller-uid": second.metadata.uid}
    work.settle()
    assert len(work.pods()) == 2
