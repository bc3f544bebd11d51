"""Jobs: the containers in which transactions are recovered.

A program that comes back under the same job recovers what the job has left. The default is made of what identifies program and
place, so that two programs do not meet by chance: the address of the host, a digest, and the first 16 characters of the profile's
name. The digest is over the host's own id, the profile's name, its state server and its fingerprint. A changed password thus
leaves the job as it is, and a changed resource manager makes another one.
"""

from __future__ import annotations

import hashlib
from typing import Final

from understudy.xa.core.errors import ConfigError
from understudy.xa.core.profiles.profile import Profile

JOB_VARIABLE: Final = "UNDERSTUDY_JOB"
MAX_JOB: Final = 128
_PROFILE_CHARACTERS: Final = 16


def default_job(profile: Profile, *, address: str, host_id: str) -> str:
    """The job of a program that names none.

    Args:
        profile: which the program uses.
        address: of this host, as text.
        host_id: what tells this host from others, for example the content of /etc/machine-id.
    """
    text = f"{host_id}\0{profile.name}\0{profile.state_server}\0{profile.fingerprint}"
    digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    return f"{address}/{digest}/{profile.name[:_PROFILE_CHARACTERS]}"


def checked_job(job: str, where: str) -> str:
    """The job, if it can be one: 1 to 128 printable ASCII characters without spaces.

    Raises:
        ConfigError: it cannot.
    """
    if not 1 <= len(job) <= MAX_JOB or not all("!" <= character <= "~" for character in job):
        raise ConfigError(f"{where}: job {job!r} is not 1 to {MAX_JOB} printable ASCII characters without spaces")
    return job
