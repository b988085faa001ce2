"""A pretended torch package for tests of what gpumem does around `import torch` and the start of CUDA.

Its CUDA starts by `torch.cuda.init()`, which calls what was queued by `_lazy_call`, as the real one does;
`torch.events` lists what was done to it, in order.
"""

from __future__ import annotations

from pathlib import Path

CAPACITY_BYTES = 150_110_994_432

FILES = {
    "version.py": """
        from typing import Optional
        __version__ = '9.1.0+cu130'
        cuda: Optional[str] = {cuda!r}
        git_version = '0123456789abcdef0123'
    """,
    "__init__.py": """
        import os
        events = []
        variable_at_import = os.environ.get('SET_BEFORE_IMPORT')
        if os.environ.get('FAKE_TORCH_FAILS'):
            raise ImportError('libcudart.so.13: cannot open shared object file')
        from torch import version
        from torch import _C, cuda, nn
        __version__ = version.__version__
        events.append('imported')
    """,
    "nn/__init__.py": "import torch.cuda\n",
    "nn/functional.py": "",
    "_C.py": """
        import os
        reserved = 0
        fractions = {{}}
        def _cuda_getDeviceCount(): return 2
        def _cuda_getDriverVersion(): return 13000
        def _cuda_getMemoryFraction(device): return fractions.get(device, 1.0)
        def _cuda_setMemoryFraction(fraction, device): fractions[device] = fraction
        def _accelerator_getAllocatorSettings(): return 'expandable_segments:True'
        def _cuda_memoryStats(device):
            return {{'allocated_bytes': {{'all': {{'current': 512, 'peak': 1024}}}},
                    'reserved_bytes': {{'all': {{'current': reserved, 'peak': reserved}}}}}}
    """,
    "cuda/__init__.py": """
        import types
        from torch import _C
        _queued_calls, _started = [], False
        def is_initialized(): return _started
        def _lazy_call(function):
            import torch
            torch.events.append('lazy_call')
            function() if _started else _queued_calls.append(function)
        def init():
            global _started
            import torch
            torch.events.append('init')
            for call in _queued_calls: call()
            _started = True
        def get_device_properties(device):
            return types.SimpleNamespace(name='NVIDIA H200', total_memory={capacity}, uuid=f'{{device:08x}}-0-0-0-0')
        def memory_snapshot(mempool_id=None, include_traces=True):
            import torch
            torch.events.append(f'snapshot include_traces={{include_traces}}')
            return [{{'device': 0, 'address': 4096, 'total_size': 2097152, 'allocated_size': 512, 'stream': 0,
                     'segment_type': 'small', 'segment_pool_id': (0, 0), 'is_expandable': False, 'frames': [],
                     'blocks': [
                        {{'address': 4096, 'size': 512, 'requested_size': 4, 'state': 'active_allocated',
                         'frames': [{{'filename': 'a.py', 'line': 3, 'name': 'f', 'fx_node_op': 'x'}}]}},
                        {{'address': 4608, 'size': 2096640, 'requested_size': 9, 'state': 'inactive', 'frames': []}}]}}]
    """,
}


def write_fake_torch(site: Path, *, cuda: str | None = "13.0") -> Path:
    """Writes the package into `site` with headers that know the trace tracker; the package's folder."""
    from textwrap import dedent

    folder = site / "torch"
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text).format(cuda=cuda, capacity=CAPACITY_BYTES))
    headers = folder / "include" / "c10" / "cuda"
    headers.mkdir(parents=True)
    (headers / "CUDACachingAllocator.h").write_text("using AllocatorTraceTracker = int;\n")
    (folder / "lib").mkdir()
    (folder / "lib" / "libc10.so").write_bytes(b"\x7fELF _ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx11")
    return folder
