"""One registration in this process: ``_worker.py MODULE.FUNCTION JOB.json``, the answer goes beside the job.

It runs with the interpreter of the peers and needs nothing of regweave. The job has the files, the setting and the
number of threads. The answer has the seconds of the deformable stage, the processor seconds of the process and its most
memory, or the error.
"""

import importlib
import json
import re
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np


def peak_memory_mb() -> float | None:
    """Most memory of this program alone: what `getrusage` says includes the parent's size at the fork."""
    status = Path("/proc/self/status")
    found = re.search(r"VmHWM:\s*(\d+)", status.read_text(encoding="ascii")) if status.exists() else None
    return int(found[1]) / 1024 if found else None


def attempt(adapter: str, field: str, **job: Any) -> dict[str, Any]:
    """Run the job: seconds and memory, or the error."""
    module, _, function = adapter.rpartition(".")
    try:
        found, seconds = getattr(importlib.import_module(module), function)(**job)
        np.save(field, np.ascontiguousarray(found, dtype=np.float32))
    except Exception as error:
        traceback.print_exc()
        words = " ".join(f"{type(error).__name__}: {error}".split())
        # Addresses would make every failure a different one.
        return {"error": re.sub(r"\(0x[0-9a-f]+\)", "", words)[:300]}
    spent = {"seconds": float(seconds), "cpu_seconds": time.process_time(), "peak_memory_mb": peak_memory_mb()}
    return {"error": None, **spent}


if __name__ == "__main__":
    adapter, path = sys.argv[1], Path(sys.argv[2])
    answer = attempt(adapter, **json.loads(path.read_text(encoding="utf-8")))
    path.with_suffix(".answer").write_text(json.dumps(answer), encoding="utf-8")
