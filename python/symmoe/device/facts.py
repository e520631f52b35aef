"""What `symmoe doctor` says about GPUs: what was built, which devices and NCCL there are."""

from __future__ import annotations

from typing import Any

from .. import _core
from ..config import Config
from ..errors import UnavailableError
from . import libraries
from .bootstrap import parse_tuning

KINDS = ("cuda", "hip")


def gpu() -> dict[str, Any]:
    """The GPU path of this build on this machine, in words."""
    facts: dict[str, Any] = {}
    for kind in KINDS:
        facts[kind] = _device(kind)
    facts.update(_nccl())
    facts.update(_tuning())
    emulation = libraries.back_end("host") is not None and libraries.fake_nccl() is not None
    facts["emulation"] = "symmoe.testing works" if emulation else "not built (SYMMOE_TESTING=OFF)"
    return facts


def _device(kind: str) -> str:
    path = libraries.back_end(kind)
    if path is None:
        compiler = "nvcc" if kind == "cuda" else "-DSYMMOE_HIP=ON"
        return f"not built: this is a build without {compiler}"
    try:
        device = _core.Device(str(path), 0)
        found, refusal = device.properties, device.shared_refusal()
    except UnavailableError as error:
        return f"built; {str(error).replace(f'no {kind} device: ', 'no device: ')}"
    major, minor = found["capability"]
    windows = f"no VMM windows: {refusal}" if refusal else "VMM windows"
    return (
        f"built; {found['name']}, capability {major}.{minor}, {found['multiprocessors']} SMs, "
        f"{windows}"
    )


def _nccl() -> dict[str, str]:
    try:
        config = Config.from_env()
        found = _core.nccl_description(
            config.nccl_lib or "", libraries.nccl_wheels(), config.allow_unsafe_nccl
        )
    except (UnavailableError, ValueError) as error:
        return {"nccl": f"no: {error}"}
    return {
        "nccl": f"{found['version']} ({found['origin']}: {found['path']})",
        "direct_path": found["no_direct"] or "NCCL allows it",
        "peer_pointers": found["no_peer_pointers"] or "NCCL allows them",
    }


def _tuning() -> dict[str, str]:
    """What the table is for that SYMMOE_TUNING names; nothing where none is named."""
    try:
        path = Config.from_env().tuning
        if path is None:
            return {}
        lines, world, kind = parse_tuning(path)
    except ValueError as error:
        return {"tuning": f"no: {error}"}
    return {"tuning": f"{path}: {len(lines)} lines for {world} ranks on {kind}"}
