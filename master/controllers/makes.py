"""What one pass of a controller makes: each object goes through admission, and what is refused is told to its owner."""

from __future__ import annotations

import msgspec

from api.core.events import Event, reference
from api.meta.types import Object, ObjectReference
from api.validation.registry import default
from master.admission.chain import AdmissionChain
from master.controllers import happenings, refusals
from master.controllers.look import Look
from master.controllers.refusals import Refusal
from master.kinds import BY_NAME
from master.store.draft import Draft
from master.store.records import Key
from master.wire.answers import Failure
from master.writing import writes
from master.writing.naming import random_letters
from master.writing.outcomes import Cursor, Make


class Makes:
    """`draft` is what is to be written. `refused` are the owners who did not get all, by uid; `tried` those of them who
    asked in this pass, and did not only wait. `notices` tell of what nobody owns.
    """

    def __init__(self, chain: AdmissionChain, look: Look, draft: Draft) -> None:
        self._chain = chain
        self._look = look
        self.draft = draft
        self.refused: dict[str, Refusal] = {}
        self.tried: set[str] = set()
        self.notices: dict[str, str] = {}
        self._served: set[str] = set()

    def make(self, wish: Make) -> None:
        """One object, unless its owner was refused another one not long ago."""
        if isinstance(wish.item, Cursor):
            self.draft.put(wish.item)
            return
        owner = happenings.owner_of(wish.item) if wish.owner is None else reference(wish.owner)
        if owner is not None and self._must_wait(owner.uid):
            return
        item = self._completed(wish.item)
        kind = BY_NAME[item.KIND]
        try:
            item = self._chain.created(kind, default(item, kind.rules), self.draft)
        except Failure as failure:
            self._tell(wish.by, item, owner, failure.status.message)
            return
        self.draft.put(item)
        if owner is not None:
            self._served.add(owner.uid)
        if wish.by:
            self.make(happenings.made(item, wish.by, self._look.now))

    def _must_wait(self, uid: str) -> bool:
        known = self._look.refusals.get(uid)
        if uid not in self.refused and known is not None and self._look.env.steady() < known.again:
            self.refused[uid] = known
        return uid in self.refused

    def _tell(self, by: str, item: Object, owner: ObjectReference | None, why: str) -> None:
        if isinstance(item, Event):
            return  # Nothing can be told where nothing is kept any more.
        if owner is None:
            self.notices[f"{item.KIND} {item.metadata.namespace}/{item.metadata.name}"] = why
            return
        before = None if owner.uid in self._served else self._look.refusals.get(owner.uid)
        now = self._look.env.steady()
        self.refused[owner.uid] = refusals.refused(before, item.metadata.namespace, why, now)
        self.tried.add(owner.uid)
        by = by or f"{owner.kind.lower()}-controller"
        self.make(happenings.refused(owner, item, by, why, self._look.now))

    def _completed(self, item: Object) -> Object:
        """With a name, where there is only the beginning of one."""
        meta = item.metadata
        while not meta.name or self.draft.one(Key(item.KIND, meta.namespace, meta.name)) is not None:
            if not meta.generate_name:
                break
            meta = msgspec.structs.replace(meta, name=writes.completed(meta.generate_name, random_letters()))
        return msgspec.structs.replace(item, metadata=meta)
