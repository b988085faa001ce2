"""The allocator on a CUDA driver, a pretended one that ends the process where its manners are broken."""

from __future__ import annotations

from pathlib import Path

import pytest

import gpumem
from gpumem.vocabulary import EventKind
from pretended_driver import build_driver, run_on_driver

pytestmark = pytest.mark.needs("compiler")


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_driver(tmp_path_factory.mktemp("driver"))


def check(driver: Path, program: str, *, cwd: Path | None = None) -> None:
    done = run_on_driver(driver, program, cwd=cwd)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_segments_come_from_the_driver_and_go_back(driver: Path) -> None:
    check(
        driver,
        """
        with gpumem.Allocator("cuda") as a:
            assert driver.pretend_retained() == 1
            small = a.alloc(1)
            large = a.alloc(30 * MIB)
            assert used() == 32 * MIB, used()
            a.free(large)
            assert used() == 32 * MIB
            a.empty_cache()
            assert used() == 2 * MIB
            assert a.stats().reserved_bytes == 2 * MIB
        assert used() == 0 and driver.pretend_retained() == 0 and driver.pretend_depth() == 0
        """,
    )


def test_expandable_segments_grow_and_shrink_by_pages(driver: Path) -> None:
    check(
        driver,
        """
        with gpumem.Allocator("cuda", settings="expandable_segments:True") as a:
            first = a.alloc(15 * MIB)
            assert used() == 20 * MIB
            second = a.alloc(15 * MIB)
            assert second == first + 15 * MIB and used() == 40 * MIB
            a.free(second)
            a.empty_cache()
            assert used() == 20 * MIB
            third = a.alloc(25 * MIB)
            assert third == second and used() == 40 * MIB
            assert a.stats().segment_count == 0
        assert used() == 0 and driver.pretend_depth() == 0
        """,
    )


def test_a_page_that_the_driver_refuses_leaves_nothing_mapped(driver: Path) -> None:
    check(
        driver,
        """
        with gpumem.Allocator("cuda", settings="expandable_segments:True") as a:
            held = a.alloc(18 * MIB)
            try:
                a.alloc(60 * MIB)
                raise SystemExit("it was not refused")
            except gpumem.OutOfMemoryError as error:
                assert error.free_bytes == 44 * MIB, error.free_bytes
            assert used() == a.stats().reserved_bytes == 20 * MIB
            for call in (b"cuMemMap", b"cuMemSetAccess", b"cuMemCreate"):
                driver.pretend_failure(call, 700)
                try:
                    a.alloc(30 * MIB)
                    raise SystemExit("it did not fail")
                except DeviceFailed as error:
                    assert f"mapping memory: {call.decode()}: CUDA_ERROR_ILLEGAL_ADDRESS" in str(error), error
                assert used() == 20 * MIB
            a.alloc(30 * MIB)
        assert used() == 0
        """,
    )


def test_a_free_waits_for_the_streams_that_use_the_block(driver: Path) -> None:
    check(
        driver,
        """
        with gpumem.Allocator("cuda") as a:
            block = a.alloc(4 * MIB)
            a.record_stream(block, 0x70)
            a.record_stream(block, 0x71)
            a.free(block)
            assert (a.stats().allocated_bytes, a.stats().pending_bytes) == (0, 4 * MIB)
            driver.pretend_finish(0x70)
            other = a.alloc(4 * MIB)
            assert other != block and a.stats().pending_bytes == 4 * MIB
            driver.pretend_finish(0x71)
            assert a.alloc(4 * MIB) == block and a.stats().pending_bytes == 0
            a.record_stream(other, 0x70)
            a.free(other)
            a.empty_cache()
            assert a.stats().pending_bytes == 0
        """,
    )


@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
def test_a_destroyed_stream_is_waited_for_by_the_whole_context(driver: Path, settings: str) -> None:
    check(
        driver,
        f"""
        with gpumem.Allocator("cuda", settings={settings!r}) as a:
            own, other = a.alloc(4 * MIB, stream=0x70), a.alloc(4 * MIB)
            a.record_stream(other, 0x70)
            driver.pretend_destroy(0x70)
            assert driver.pretend_context_waits() == 0
            a.free(other)
            assert (driver.pretend_context_waits(), a.stats().pending_bytes) == (1, 4 * MIB)
            assert a.alloc(4 * MIB) == other and a.stats().pending_bytes == 0
            a.record_stream(other, 0x70)
            a.free(other)
            a.free(own)
            a.empty_cache()
            assert used() == 0 and a.stats().pending_bytes == 0
        """,
    )


def test_memory_is_asked_for_while_a_graph_is_captured(driver: Path) -> None:
    check(
        driver,
        """
        with gpumem.Allocator("cuda") as a:
            driver.pretend_capture(1)
            block = a.alloc(4 * MIB)
            a.record_stream(block, 0x70)
            a.free(block)
            driver.pretend_capture(0)
        assert used() == 0
        """,
    )


def test_a_smaller_card_is_pretended_by_memory_bytes(driver: Path) -> None:
    check(
        driver,
        """
        with gpumem.Allocator("cuda", memory_bytes=30 * MIB) as a:
            a.alloc(20 * MIB)
            try:
                a.alloc(12 * MIB)
                raise SystemExit("it was not refused")
            except gpumem.OutOfMemoryError as error:
                assert error.free_bytes == 10 * MIB
                assert "10.00 MiB of 30.00 MiB are free" in str(error), error
            a.alloc(10 * MIB)
        """,
    )


def test_a_call_makes_its_context_current_and_leaves_the_program_s_own(driver: Path) -> None:
    check(
        driver,
        """
        from gpumem import memory
        driver.pretend_card(64 * MIB, 2)
        with gpumem.Allocator("cuda", 0) as first, gpumem.Allocator("cuda", 1) as second:
            for current in (-1, 0, 1):
                driver.pretend_current(current)
                depth = driver.pretend_depth()
                for allocator in (first, second):
                    allocator.free(allocator.alloc(3 * MIB))
                    allocator.empty_cache()
                    assert allocator.mem_get_info() == (64 * MIB, 64 * MIB)
                assert driver.pretend_depth() == depth
                assert memory.current_device() == max(current, 0)
            driver.pretend_failure(b"cuCtxPushCurrent", 700)
            try:
                first.alloc(1)
                raise SystemExit("it did not fail")
            except DeviceFailed as error:
                assert "allocating a segment: cuCtxPushCurrent: CUDA_ERROR_ILLEGAL_ADDRESS" in str(error), error
            assert used() == 0 and first.alloc(1)
        """,
    )


def test_doctor_lists_the_gpus_of_the_driver_without_starting_one(driver: Path) -> None:
    check(
        driver,
        """
        from pathlib import Path
        from gpumem.analyses.doctor import measure_machine
        driver.pretend_card(64 * MIB, 2)
        [found] = [one for one in measure_machine(Path.cwd()).checks if one.code == "own_allocator"]
        assert found.text == ("libcuda.so.1 answers. GPU 0: Pretended GPU 0, 64.00 MiB, expandable segments; "
                              "GPU 1: Pretended GPU 1, 64.00 MiB, expandable segments"), found
        assert driver.pretend_retained() == 0
        """,
    )


def test_figures_are_of_the_gpu_whose_context_is_current(driver: Path) -> None:
    check(
        driver,
        """
        from gpumem import memory
        driver.pretend_card(64 * MIB, 2)
        assert memory.current_device() == 0
        with gpumem.Allocator("cuda", 0) as first, gpumem.Allocator("cuda", 1) as second:
            second.alloc(3 * MIB)
            assert (memory.current_device(), memory.memory_reserved()) == (0, 0)
            driver.pretend_current(1)
            assert (memory.current_device(), memory.memory_reserved()) == (1, 20 * MIB)
            assert memory.memory_reserved(0) == 0
            with memory.device(0):
                assert (memory.current_device(), memory.memory_reserved()) == (0, 0)
            driver.pretend_current(-1)
            assert memory.current_device() == 0
        """,
    )


def test_two_devices_have_an_allocator_each(driver: Path) -> None:
    check(
        driver,
        """
        driver.pretend_card(64 * MIB, 2)
        with gpumem.Allocator("cuda", 0) as first, gpumem.Allocator("cuda", 1) as second:
            a, b = first.alloc(1), second.alloc(1)
            assert a != b and driver.pretend_retained() == 2
            try:
                gpumem.Allocator("cuda", 1)
                raise SystemExit("a second one was made")
            except gpumem.errors.UsageError as error:
                assert "has an allocator in this process already" in str(error)
        try:
            gpumem.Allocator("cuda", 2)
            raise SystemExit("there is no third GPU")
        except DeviceUnavailable as error:
            assert str(error).startswith("GPU 2 cannot be used: the program sees 2 GPUs; "), error
        """,
    )


def test_a_driver_s_error_is_told_in_its_words_and_the_heap_stays(driver: Path) -> None:
    check(
        driver,
        """
        with gpumem.Allocator("cuda") as a:
            driver.pretend_failure(b"cuMemAlloc", 700)
            try:
                a.alloc(1)
                raise SystemExit("it did not fail")
            except DeviceFailed as error:
                assert str(error) == ("GPU 0 failed while allocating a segment: cuMemAlloc: CUDA_ERROR_ILLEGAL_ADDRESS "
                                      "(an illegal memory access was encountered)."), error
            assert a.stats().reserved_bytes == 0
            a.alloc(1)
        """,
    )


def test_a_recording_names_the_gpu_and_holds_the_events(driver: Path, tmp_path: Path) -> None:
    check(
        driver,
        """
        with gpumem.record("trace.gpumem"):
            with gpumem.Allocator("cuda") as a:
                a.alloc(30 * MIB)
        """,
        cwd=tmp_path,
    )
    trace = gpumem.open(tmp_path / "trace.gpumem")
    device = trace.meta.devices[0]
    assert (device.name, device.uuid) == ("Pretended GPU 0", "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f")
    assert device.capacity_bytes == 64 << 20
    kinds = [EventKind(kind).name for batch in trace.event_batches(["kind"]) for kind in batch["kind"].tolist()]
    assert kinds == ["SEGMENT_REQUEST", "SEGMENT_ALLOC", "ALLOC", "FREE", "EMPTY_CACHE", "SEGMENT_FREE"]
