"""A region on fake GPUs, and the programs that are held to it."""

from collections.abc import Sequence
from pathlib import Path

from fake_cuda.driver import FakeGpus, gpu_uuid

import libhamiregion as hami
from libhamiregion.run.driver import Driver
from libhamiregion.run.libraries import preloaded_library, stand_in_links
from support.cuda_program import CudaProgram
from support.process import Finished, finished

INJECTIONS = ("standin", "preload")


class Limited:
    """Programs under one region; `region` is open for writing, `nvml` are rules of their NVML."""

    def __init__(
        self,
        gpus: FakeGpus,
        directory: Path,
        *,
        memory: Sequence[object] = (),
        sm: Sequence[object] = (),
        uuids: Sequence[str] | None = None,
        inject: str = "standin",
        layout: hami.Layout = hami.Layout.V1_2,
        nvml: str = "",
    ) -> None:
        directory.mkdir()
        self.nvml = {}
        if nvml:
            (directory / "nvml").write_text(nvml)
            self.nvml["FAKE_NVML_STATE"] = str(directory / "nvml")
        self.gpus = gpus
        self.directory = directory
        self.inject = inject
        self.path = directory / "region.cache"
        hami.create_region(
            self.path,
            layout=layout,
            memory_limits=list(memory),
            sm_limits=list(sm),
            uuids=[gpu_uuid(0), gpu_uuid(1)] if uuids is None else list(uuids),
        )
        driver = Driver(
            str(gpus.libraries / "libcuda.so.1"), str(gpus.libraries / "libnvidia-ml.so.1")
        )
        for name, target in stand_in_links(driver).items():
            (directory / name).symlink_to(target)
        self.region = hami.open_region(self.path, writable=True)
        self.programs: list[CudaProgram] = []

    def environment(self, **more: str) -> dict[str, str]:
        """What `hamiregion run` would give a program."""
        more = {"CUDA_DEVICE_MEMORY_SHARED_CACHE": str(self.path), **self.nvml, **more}
        found = self.gpus.environment(**more)
        if self.inject == "standin":
            found["LD_LIBRARY_PATH"] = f"{self.directory}:{found['LD_LIBRARY_PATH']}"
        else:
            found["LD_PRELOAD"] = preloaded_library()
        return found

    def program(self, **more: str) -> CudaProgram:
        """A program under the region that has made no call yet."""
        self.programs.append(CudaProgram(self.environment(**more)))
        return self.programs[-1]

    def run(self, *command: str, **more: str) -> Finished:
        """Run another program under the region to its end."""
        return finished(command, env=self.environment(**more))

    def used(self, device: int = 0) -> int:
        """What the region counts on a device, over all processes."""
        return self.region.snapshot().devices[device].memory_used_bytes

    def close(self) -> None:
        for program in self.programs:
            program.kill()
        self.region.close()
