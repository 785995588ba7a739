"""`podlane logout`: ends the token of a kubeconfig at the master, and removes it from the file."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path

from api.client.client import ApiError, NotFound
from api.client.kubeconfig import Kubeconfig
from api.core.auth import SelfSubjectReview
from api.core.oauth import TOKEN_PREFIX, token_name
from cli.command import UsageError
from cli.kubeconfig import connect, writable_file
from reconcile import atomic_file

ACCESS_TOKENS_PATH = "/apis/oauth.openshift.io/v1/oauthaccesstokens"


def logout(arguments: argparse.Namespace) -> int:
    """End the token, and remove it from the kubeconfig. Returns the exit code.

    If the master cannot be asked to end the token, the kubeconfig stays as it is. Raises UsageError, BadKubeconfig and
    ClientError.
    """
    file = Path(arguments.kubeconfig) if arguments.kubeconfig else writable_file(os.environ)
    kubeconfig = Kubeconfig.load(file)
    if not kubeconfig.token:
        raise UsageError(f"{file}: You must have a token in order to logout.")
    if not kubeconfig.token.startswith(TOKEN_PREFIX):
        raise UsageError(f"{file}: the token is not from a login; {TOKEN_PREFIX}... is accepted")
    user = asyncio.run(_end_token(kubeconfig))
    atomic_file.write(file, kubeconfig.without_token().encode())
    if user:
        sys.stdout.write(f'Logged "{user}" out on "{kubeconfig.server}"\n')
    else:
        sys.stdout.write(f"The token had ended on {kubeconfig.server}; it was removed from {file}\n")
    return 0


async def _end_token(kubeconfig: Kubeconfig) -> str:
    """Delete the token. Return the name of its user; empty if the token is no longer valid. Raises ClientError."""
    async with connect(kubeconfig) as client:
        try:
            review = await client.create_review(SelfSubjectReview())
            await client.request("DELETE", f"{ACCESS_TOKENS_PATH}/{token_name(kubeconfig.token)}")
        except NotFound:
            return ""
        except ApiError as error:
            if error.status.code == 401:
                return ""
            raise
    return review.status.user_info.username
