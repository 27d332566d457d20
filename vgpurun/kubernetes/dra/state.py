"""The claims that are prepared on this node: a state folder and a CDI specification for each.

    <root>/claims/<uid>/              as a container's state folder; `owner` says which claim it is and what it has
    <cdi>/vgpurun.io-claim-<uid>.json its devices

The folder is the record. It is made under another name and put in its place in one step, and goes the same way, so a
plugin that is killed at any instant leaves a claim that is prepared or one that is not. The specification follows from
the record and is written again where it is missing. A lock keeps two plugins (an update) from doing this at once.
"""

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from vgpurun.errors import ClaimError, StateError
from vgpurun.kubernetes.dra.claim import Allocation, ClaimName, check_uid
from vgpurun.kubernetes.locks import one_at_a_time
from vgpurun.limits.model import DeviceQuota, quotas_from_json, quotas_to_json
from vgpurun.limits.quota import Quota, show_size
from vgpurun.storage import state, tenants
from vgpurun.storage.unchanged import Unchanged

_HALF_MADE = ".making-"
_HALF_GONE = ".removing-"


class Part(NamedTuple):
    """A result of a claim: a part of a GPU. `request` is without a subrequest's name."""

    request: str
    pool: str
    device: str
    share_id: str


class Prepared(NamedTuple):
    """A claim that is prepared."""

    claim: ClaimName
    folder: Path
    parts: tuple[Part, ...]
    quotas: tuple[tuple[str, Quota], ...]
    pods: tuple[str, ...]
    library: Path

    @property
    def together(self) -> bool:
        """Whether its containers work on the GPUs at the same time, by MPS."""
        return any(quota.together for _, quota in self.quotas)

    def age_s(self) -> float:
        """Return how long ago it was prepared, in seconds; 0 for a claim that is gone."""
        try:
            return time.time() - (self.folder / "owner").stat().st_mtime
        except OSError:
            return 0.0


class Claims:
    """The prepared claims under a root."""

    def __init__(self, root: Path) -> None:
        self._folder = root / state.CLAIMS
        self._known = Unchanged("owner", _read, None)  # each claim that is added asks what all others hold

    def find(self, uid: str) -> Prepared | None:
        """Return a claim if it is prepared. Raises ClaimError for what can be no UID."""
        return _read(self._folder / check_uid(uid))

    def all(self) -> list[Prepared]:
        """Return all claims that are prepared."""
        try:
            folders = sorted(each for each in self._folder.iterdir() if not each.name.startswith("."))
        except OSError:
            return []
        return [prepared for each in folders if (prepared := self._known(each))]

    def add(
        self, allocation: Allocation, quotas: Sequence[DeviceQuota], files: Mapping[str, bytes], library: Path
    ) -> Prepared:
        """Record a claim with the files of its state folder, if it is not recorded yet.

        It keeps its library for good: a newer one may not understand the files. Raises ClaimError where its GPUs have
        no room, and StateError.
        """
        place = self._folder / check_uid(allocation.claim.uid)
        with self._alone():
            if prepared := _read(place):
                return prepared
            self._check_room(allocation, quotas)
            self._remove(place)  # a record that cannot be read
            half_made = self._folder / f"{_HALF_MADE}{os.urandom(6).hex()}"
            folder = state.StateFolder.make(half_made, files, _owner(allocation, quotas, library))
            try:
                half_made.rename(place)
            except OSError as error:
                folder.remove()
                raise StateError(f"cannot make {place}: {error.strerror}") from None
            folder.close()
        made = _read(place)
        if made is None:
            raise StateError(f"{place} cannot be read again")
        return made

    def remove(self, uid: str) -> None:
        """Forget a claim, whether it was recorded or not. Raises ClaimError and StateError."""
        with self._alone():
            self._remove(self._folder / check_uid(uid))

    def clean(self) -> None:
        """Remove what a plugin that was killed has left half made or half removed. Raises StateError."""
        with self._alone():
            for pattern in (_HALF_MADE, _HALF_GONE):
                for folder in self._folder.glob(f"{pattern}*"):
                    shutil.rmtree(folder, ignore_errors=True)

    def restore_tenants(self) -> None:
        """Make the folders of tenants that somebody has removed: containers start with them.

        Raises StateError for the last that cannot be made, after all others.
        """
        if all(tenants.is_there(each.folder) for each in self.all()):
            return
        failed: StateError | None = None
        with self._alone():
            for each in self.all():
                try:
                    tenants.make(each.folder)
                except StateError as error:
                    failed = error
        if failed:
            raise failed

    def _check_room(self, allocation: Allocation, quotas: Sequence[DeviceQuota]) -> None:
        """The scheduler counts, too, but a claim that it takes for gone may still be in use here."""
        others = self.all()
        for each in quotas:
            held = [quota for other in others for uuid, quota in other.quotas if uuid == each.gpu.uuid]
            memory_bytes = sum(quota.memory_bytes or 0 for quota in held)
            if memory_bytes + (each.quota.memory_bytes or 0) > each.gpu.memory_bytes:
                raise ClaimError(
                    f"{allocation.claim} needs {show_size(each.quota.memory_bytes or 0)} of GPU {each.gpu.number}, but "
                    f"other claims that are still prepared here hold {show_size(memory_bytes)} of its "
                    f"{show_size(each.gpu.memory_bytes)}"
                )
            percent = sum(quota.sm_percent or 0 for quota in held) + (each.quota.sm_percent or 0)
            if percent > 100:
                raise ClaimError(
                    f"{allocation.claim} and other claims that are still prepared here have {percent} % of the compute "
                    f"of GPU {each.gpu.number}"
                )

    def _remove(self, place: Path) -> None:
        tenants.remove(place)  # first: as long as there is a record, this is tried again
        half_gone = self._folder / f"{_HALF_GONE}{os.urandom(6).hex()}"
        try:
            place.rename(half_gone)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StateError(f"cannot remove {place}: {error.strerror}") from None
        shutil.rmtree(half_gone, ignore_errors=True)

    def _alone(self) -> AbstractContextManager[None]:
        """Until this ends no other thread or plugin makes or removes a record."""
        return one_at_a_time(self._folder)


def _owner(allocation: Allocation, quotas: Sequence[DeviceQuota], library: Path) -> dict[str, Any]:
    return {
        "claim": allocation.claim._asdict(),
        "devices": [(result.request.partition("/")[0], result.pool, result.device) for result in allocation.results],
        "shares": [result.share_id for result in allocation.results],
        "pods": allocation.pods,
        "library": str(library),
        "quota": quotas_to_json(quotas),
    }


def _read(folder: Path) -> Prepared | None:
    owner = state.read_owner(folder)
    if owner is None:
        return None
    with suppress(KeyError, TypeError, ValueError):
        return Prepared(
            claim=ClaimName(**owner["claim"]),
            folder=folder,
            parts=tuple(
                Part(str(request), str(pool), str(device), str(share))
                for (request, pool, device), share in zip(owner["devices"], owner["shares"], strict=True)
            ),
            quotas=tuple(quotas_from_json(owner["quota"])),
            pods=tuple(map(str, owner["pods"])),
            library=Path(owner["library"]),
        )
    return None
