"""Concurrent writers of one object, against a real master."""

from __future__ import annotations

import asyncio

from tests.testbed.apiserver.untyped_client import UntypedClient

PATH = "/api/v1/namespaces/default/configmaps"
PEOPLE, CHANGES = 8, 10


async def test_conflicting_writer_reads_the_winning_write(api_client: UntypedClient) -> None:
    """Also when that is still on its way to the disk: otherwise a client would try in vain again and again."""
    await api_client.create(PATH, name="shared", data={"count": "0"})
    refusals: list[str] = []

    async def person() -> None:
        for _ in range(CHANGES):
            refused = ""
            while True:
                actual = await api_client.request("GET", f"{PATH}/shared")
                version = actual["metadata"]["resourceVersion"]
                assert version != refused, "the same again after it was too old"
                actual["data"]["count"] = str(int(actual["data"]["count"]) + 1)
                answer = await api_client.request("PUT", f"{PATH}/shared", actual)
                if answer.get("reason") != "Conflict":
                    break
                refused = version
                refusals.append(version)

    await asyncio.gather(*(person() for _ in range(PEOPLE)))
    assert (await api_client.request("GET", f"{PATH}/shared"))["data"]["count"] == str(PEOPLE * CHANGES)
    assert refusals, "somebody was too late"
