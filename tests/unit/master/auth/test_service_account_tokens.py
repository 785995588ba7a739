"""Tokens of service accounts, and their reviews."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from api.core.auth import (
    BoundObjectReference,
    NonResourceAttributes,
    ResourceAttributes,
    SelfSubjectAccessReview,
    SelfSubjectReview,
    SelfSubjectRulesReview,
    SubjectAccessReview,
    SubjectAccessReviewSpec,
    TokenRequest,
    TokenRequestSpec,
    TokenReview,
    TokenReviewStatus,
)
from api.core.config import ConfigMap
from master.auth import service_account_tokens
from master.auth.attributes import Attributes, Decision, User
from master.auth.authorization import decide
from master.auth.node_authorizer import NodeAccess
from master.auth.reviews import ReviewBackend, answer_review, review_problems
from master.auth.service_account_tokens import TokenSigner
from master.errors import StatusError
from master.registry import creation
from master.resources.configuration import ServiceAccount
from master.resources.rbac import PolicyRule
from reconcile.errors import Refused
from tests.unit.master.examples import meta, namespace, pod

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
ISSUER = TokenSigner(ec.generate_private_key(ec.SECP256R1()))
ROBOT = ServiceAccount(metadata=meta("robot", namespace="red"))


def token_request(bound: BoundObjectReference | None = None, **spec: Any) -> TokenRequest:
    return TokenRequest(spec=TokenRequestSpec(bound_object_ref=bound, **spec))


def test_token_carries_subject_and_audience() -> None:
    web = pod("web")
    reference = BoundObjectReference(kind="Pod", api_version="v1", name="web", uid=web.metadata.uid)
    token = ISSUER.sign(
        service_account_tokens.token_claims(ROBOT, token_request(reference, audiences=("vault",)), web, NOW, "id-1")
    )
    actual = ISSUER.verify(token, NOW)
    user = service_account_tokens.user_from_claims(actual)
    assert user.name == "system:serviceaccount:red:robot"
    assert dict(user.extra) == {
        "authentication.kubernetes.io/pod-name": ("web",),
        "authentication.kubernetes.io/pod-uid": (web.metadata.uid,),
        "authentication.kubernetes.io/credential-id": ("JTI=id-1",),
    }
    assert service_account_tokens.user_from_claims({**actual, "jti": 7}).extra == user.extra[:2]
    assert service_account_tokens.bound_objects(actual) == [
        ("ServiceAccount", "red", "robot", "uid-robot"),
        ("Pod", "red", "web", web.metadata.uid),
    ]
    assert service_account_tokens.accepted_audiences(actual, ()) == ()
    assert service_account_tokens.accepted_audiences(actual, ("vault", "other")) == ("vault",)


def test_token_expires() -> None:
    token = ISSUER.sign(
        service_account_tokens.token_claims(ROBOT, token_request(expiration_seconds=600), None, NOW, "id")
    )
    assert ISSUER.verify(token, NOW + datetime.timedelta(seconds=599))
    with pytest.raises(Refused, match="expired"):
        ISSUER.verify(token, NOW + datetime.timedelta(seconds=600))


def test_token_signed_by_another_key_is_rejected() -> None:
    other = TokenSigner(ec.generate_private_key(ec.SECP256R1()))
    with pytest.raises(Refused, match="is not signed by this server"):
        ISSUER.verify(other.sign(service_account_tokens.token_claims(ROBOT, token_request(), None, NOW, "id")), NOW)


@given(st.text(max_size=60) | st.lists(st.text("aB0-_", max_size=9), min_size=3, max_size=3).map(".".join))
def test_arbitrary_text_is_rejected_as_token(text: str) -> None:
    with pytest.raises(Refused):
        ISSUER.verify(text, NOW)


def test_token_with_incomplete_claims_is_rejected() -> None:
    good = service_account_tokens.token_claims(ROBOT, token_request(), None, NOW, "id")
    for private in (None, {}, {"namespace": "red"}, {"namespace": "red", "serviceaccount": {"name": "robot"}}):
        with pytest.raises(Refused):
            ISSUER.verify(ISSUER.sign({**good, service_account_tokens.KUBERNETES_CLAIM: private}), NOW)


WRONG = [
    (token_request(expiration_seconds=599), None),
    (token_request(BoundObjectReference(kind="Service", api_version="v1", name="web", uid="u")), None),
    (token_request(BoundObjectReference(kind="Pod", api_version="v1", name="web", uid="u")), None),
    (token_request(BoundObjectReference(kind="Pod", api_version="v1", name="web", uid="another")), pod("web")),
]


@pytest.mark.parametrize(("request_", "bound"), WRONG, ids=str)
def test_invalid_token_request_is_rejected(request_: TokenRequest, bound: Any) -> None:
    with pytest.raises(StatusError):
        service_account_tokens.token_claims(ROBOT, request_, bound, NOW, "id")


def test_namespace_gets_default_service_account_and_root_ca_config_map() -> None:
    def stored(*found: Any) -> Any:
        objects = {(type(obj), obj.metadata.name, obj.metadata.namespace): obj for obj in found}
        return lambda *key: objects.get(key)

    first = list(creation.default_objects([namespace("red")], stored(), "CA"))
    objects = [obj for obj, old in first if old is None]
    assert [(obj.KIND, obj.metadata.name) for obj in objects] == [
        ("ServiceAccount", "default"),
        ("ConfigMap", "kube-root-ca.crt"),
    ]
    account, config = objects
    assert isinstance(account, ServiceAccount)
    assert isinstance(config, ConfigMap)
    assert list(creation.default_objects([namespace("red")], stored(account, config), "CA")) == []
    ((changed, old),) = creation.default_objects([namespace("red")], stored(account, replace(config, data={})), "CA")
    assert isinstance(old, ConfigMap)
    assert isinstance(changed, ConfigMap)
    assert changed.data == {"ca.crt": "CA"}


# --- reviews ----------------------------------------------------------------------------------------------------------


HELD = (
    PolicyRule(verbs=("get",), api_groups=("",), resources=("pods",)),
    PolicyRule(verbs=("get",), non_resource_urls=("/version",)),
)


def decided(user: User, access: ResourceAttributes | NonResourceAttributes) -> Decision:
    assert isinstance(access, ResourceAttributes)
    attributes = Attributes(access.verb, access.group, access.resource)
    return decide(user, attributes, NodeAccess(), lambda _: Decision(False, "RBAC: a role is missing"))


JUDGE = ReviewBackend(
    lambda token, audiences: TokenReviewStatus(authenticated=token == "good"), decided, lambda user, namespace: HELD
)
ADMIN = User("admin", frozenset(("system:masters",)))
PODS = SubjectAccessReviewSpec(resource_attributes=ResourceAttributes(verb="list", resource="pods"))


def test_token_and_access_reviews_are_answered() -> None:
    def allowed(review: SelfSubjectAccessReview, asker: User) -> bool:
        done = answer_review(review, asker, JUDGE)
        assert isinstance(done, SelfSubjectAccessReview)
        return bool(done.status.allowed)

    assert allowed(SelfSubjectAccessReview(spec=PODS), ADMIN)
    assert not allowed(SelfSubjectAccessReview(spec=PODS), User("somebody"))
    assert not allowed(SubjectAccessReview(spec=replace(PODS, user="somebody")), ADMIN)
    assert allowed(SubjectAccessReview(spec=replace(PODS, groups=("system:masters",))), ADMIN)
    denied = answer_review(SelfSubjectAccessReview(spec=PODS), User("somebody"), JUDGE)
    assert isinstance(denied, SelfSubjectAccessReview)
    assert denied.status.reason == "RBAC: a role is missing"
    rules = answer_review(SelfSubjectRulesReview(), User("somebody"), JUDGE)
    assert isinstance(rules, SelfSubjectRulesReview)
    assert [resource_rule.resources for resource_rule in rules.status.resource_rules] == [("pods",)]
    assert [non_resource_rule.non_resource_urls for non_resource_rule in rules.status.non_resource_rules] == [
        ("/version",)
    ]
    own_review = answer_review(SelfSubjectReview(), ADMIN, JUDGE)
    assert isinstance(own_review, SelfSubjectReview)
    assert own_review.status.user_info.username == "admin"


def test_empty_access_reviews_are_rejected() -> None:
    assert [error.path for error in review_problems(TokenReview())] == ["spec.token"]
    assert [field_error.path for field_error in review_problems(SelfSubjectAccessReview())] == ["spec"]
    assert [field_error.path for field_error in review_problems(SubjectAccessReview(spec=PODS))] == ["spec.user"]
