"""What a start on a GPU begins before it needs it: the device's context, and processes that compile."""

from __future__ import annotations

import ctypes
import threading
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

from frizzen.config import EngineConfig
from frizzen.kernels.helpers import Helpers
from frizzen.progress import Timeline, process_age
from frizzen.worker.machine import available_cpus

__all__ = ["Ahead"]

DRIVER = Path("/proc/driver/nvidia/version")

FEWEST_CPUS = 4
"""With less, compilers and imports would take turns."""


class Ahead:
    """Begins it, where there is a GPU; to be made before this process uses one, since it forks.

    Attributes:
        timeline: Of the start.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.timeline = Timeline(process_age())
        self._helpers: Helpers | None = None
        if config.device == "cpu" or not DRIVER.exists() or find_spec("triton") is None:
            return
        if (cpus := available_cpus()) >= FEWEST_CPUS and not config.enforce_eager:
            self._helpers = Helpers.start(cpus)
        threading.Thread(target=_open_device, daemon=True).start()

    def hash_compiler(self) -> None:
        """Every key among compiled kernels has a hash of the whole compiler: half a second, once."""
        if self._helpers is not None:
            from triton.runtime.cache import triton_key

            threading.Thread(target=triton_key, daemon=True).start()

    def helpers(self) -> Helpers | None:
        """Compilers, for whoever asks first; who has them closes them."""
        helpers, self._helpers = self._helpers, None
        return helpers

    def __enter__(self) -> Ahead:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends what nobody has asked for."""
        if (helpers := self.helpers()) is not None:
            helpers.close()


def _open_device() -> None:
    """Makes the context of the first device, which torch will find; unlike torch without Python's lock."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), 0) == 0:
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
