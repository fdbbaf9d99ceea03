"""One registration of one peer in this process: ``_worker.py ADAPTER JOB.json``, the answer goes beside the job.

It runs with the interpreter of the peers and needs nothing of regweave. The job names the files, the setting and the
number of threads; the answer holds the seconds of the deformable stage, the seconds that all threads of the process
worked and the most memory that it held, or the error.
"""

import importlib
import json
import re
import resource
import sys
import time
import traceback
from pathlib import Path
from typing import Any


def peak_memory_mb() -> float:
    """Most memory of this program alone: what `getrusage` says includes the parent's size at the fork."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def attempt(adapter: str, job: dict[str, Any]) -> dict[str, Any]:
    """Run the job: seconds and memory, or the error."""
    try:
        seconds = importlib.import_module(adapter).run(**job)
    except Exception as error:
        traceback.print_exc()
        text = f"{type(error).__name__}: {error}".strip().splitlines()
        words = " ".join(line.strip() for line in text if line.strip())
        # Addresses would make every failure a different one.
        return {"error": re.sub(r"\(0x[0-9a-f]+\)", "", words)[:300]}
    return {
        "error": None,
        "seconds": float(seconds),
        "cpu_seconds": time.process_time(),
        "peak_memory_mb": peak_memory_mb(),
    }


def main() -> None:
    """Answer one job."""
    adapter, path = sys.argv[1], Path(sys.argv[2])
    answer = attempt(adapter, json.loads(path.read_text(encoding="utf-8")))
    path.with_suffix(".answer").write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main()
