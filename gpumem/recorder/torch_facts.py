"""What an imported torch says of itself, its devices and its allocator, as the facts of a recording.

Owns: which of torch's functions are asked, in a way that starts no CUDA context and reserves nothing, and the JSON of
the facts. Must not know: when facts are taken, where they go.

torch is passed in, never imported. Its functions below torch._C are called directly where the public ones would start
CUDA or refuse while it is being started.
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, TypeVar

Value = TypeVar("Value")
Json = Mapping[str, object]

SEGMENT_FIELDS = ("device", "address", "total_size", "stream", "segment_pool_id", "is_expandable")
BLOCK_FIELDS = ("address", "size", "requested_size", "state")
FRAME_FIELDS = ("filename", "line", "name")


def read_versions(torch: ModuleType) -> dict[str, str]:
    """Versions of torch and of the CUDA parts below it; those that do not answer are left out."""
    versions = {"torch": str(torch.__version__)}
    if torch.version.cuda is not None:
        versions["cuda"] = str(torch.version.cuda)
    driver = ask(lambda: int(torch._C._cuda_getDriverVersion()))
    if driver:
        versions["cuda_driver"] = f"{driver // 1000}.{driver % 1000 // 10}"
    cudnn = ask(lambda: torch._C._cudnn.getCompileVersion())
    if cudnn:
        versions["cudnn"] = ".".join(str(part) for part in cudnn)
    return versions


def read_settings(torch: ModuleType) -> str:
    """The allocator settings in effect, as PYTORCH_CUDA_ALLOC_CONF takes them; empty for none."""
    applied = ask(lambda: str(torch._C._accelerator_getAllocatorSettings()))
    if applied:
        return applied
    return os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or os.environ.get("PYTORCH_ALLOC_CONF") or ""


def read_devices(torch: ModuleType) -> dict[int, Json]:
    """The facts of each device the program sees, by ordinal."""
    count = ask(lambda: int(torch._C._cuda_getDeviceCount())) or 0
    return {device: read_device(torch, device) for device in range(count)}


def read_device(torch: ModuleType, device: int) -> Json:
    """Name, capacity, UUID in NVML's spelling and PyTorch's memory limit of a device; None where not known."""
    properties = ask(lambda: torch.cuda.get_device_properties(device))
    uuid = str(getattr(properties, "uuid", "") or "")
    capacity_bytes = getattr(properties, "total_memory", None)
    return {
        "uuid": (uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}") if uuid else None,
        "nvml_index": None,
        "name": getattr(properties, "name", None),
        "capacity_bytes": capacity_bytes,
        "memory_limit_bytes": read_memory_limit(torch, device, capacity_bytes),
    }


def read_memory_limit(torch: ModuleType, device: int, capacity_bytes: int | None) -> int | None:
    """Bytes that PyTorch allows itself on the device; None without a limit, or where it does not say."""
    fraction = ask(lambda: float(torch._C._cuda_getMemoryFraction(device)))
    if fraction is None or capacity_bytes is None or not 0 <= fraction < 1:
        return None
    return round(fraction * capacity_bytes)


def find_memory_fraction(limit_bytes: int, capacity_bytes: int) -> float:
    """The fraction of which PyTorch makes exactly `limit_bytes`: it cuts fraction * capacity to a whole number."""
    if limit_bytes >= capacity_bytes:
        return 1.0
    fraction = limit_bytes / capacity_bytes
    while int(fraction * capacity_bytes) < limit_bytes:
        fraction = math.nextafter(fraction, 1.0)
    return fraction


def limit_memory(torch: ModuleType, limit_bytes: int) -> None:
    """Lets PyTorch take at most `limit_bytes` of every device the program sees."""
    for device, facts in read_devices(torch).items():
        capacity_bytes = facts["capacity_bytes"]
        if isinstance(capacity_bytes, int):
            torch._C._cuda_setMemoryFraction(find_memory_fraction(limit_bytes, capacity_bytes), device)


def read_end(torch: ModuleType, device: int) -> Json | None:
    """What PyTorch itself counts on the device: bytes allocated and reserved, now and at most; None if it does not."""
    counts = ask(lambda: torch._C._cuda_memoryStats(device))
    if not counts:
        return None
    allocated = counts["allocated_bytes"]["all"]
    reserved = counts["reserved_bytes"]["all"]
    return {
        "allocated_bytes_end": int(allocated["current"]),
        "allocated_bytes_peak": int(allocated["peak"]),
        "reserved_bytes_end": int(reserved["current"]),
        "reserved_bytes_peak": int(reserved["peak"]),
    }


def is_allocator_in_use(torch: ModuleType, device_count: int) -> bool:
    """Whether PyTorch holds memory of any device: an attachment now would be one in mid-run."""
    ends = [read_end(torch, device) for device in range(device_count)]
    return any(end is not None and end["reserved_bytes_end"] for end in ends)


def take_snapshot(torch: ModuleType) -> Sequence[Json]:
    """PyTorch's segments of every device, without its trace entries where the version can leave them out."""
    if "include_traces" in inspect.signature(torch.cuda.memory_snapshot).parameters:
        return list(torch.cuda.memory_snapshot(include_traces=False))
    return list(torch.cuda.memory_snapshot())


def reduce_segments(segments: Sequence[Json]) -> list[dict[str, object]]:
    """The segments with only the fields a recording keeps, blocks with an address each."""
    reduced = []
    for segment in segments:
        kept: dict[str, object] = {name: segment[name] for name in SEGMENT_FIELDS if name in segment}
        kept["blocks"] = list(reduce_blocks(segment))
        reduced.append(kept)
    return reduced


def reduce_blocks(segment: Any) -> Iterator[dict[str, object]]:
    """The blocks of a segment in address order; versions that give no address let it be added up."""
    address = segment["address"]
    for block in segment["blocks"]:
        kept: dict[str, object] = {"address": address} | {name: block[name] for name in BLOCK_FIELDS if name in block}
        frames = block.get("frames") if block["state"] != "inactive" else None
        kept["frames"] = [{name: frame[name] for name in FRAME_FIELDS} for frame in frames or ()]
        yield kept
        address += block["size"]


def ask(question: Callable[[], Value]) -> Value | None:
    """The answer, or None where this torch has no such function or does not answer it."""
    try:
        return question()
    except (AttributeError, TypeError, ValueError, KeyError, RuntimeError, AssertionError):
        return None
