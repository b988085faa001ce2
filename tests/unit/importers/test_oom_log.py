"""Out-of-memory errors in logs: whose, where, how often, however the log was written."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from gpumem.errors import InputError, TraceNotFound
from gpumem.importers import oom_log
from gpumem.importers.oom_log import read_oom_log, read_oom_text
from gpumem.trace.oom_message import Figure, FoundMessage, OomOrigin
from oom_messages import ERROR, WRAPPED, classic, cupy, messages_in, modern, on_driver_pools
from trace_builder import GiB, MiB

TRACEBACK = """Traceback (most recent call last):
  File "/home/anna/train.py", line 88, in <module>
    main()
  File "/home/anna/train.py", line 61, in step
    loss = model(batch)
           ^^^^^^^^^^^^"""
PREFIXES = {
    "torch": "[rank{}]: ",
    "torchrun": "[default{}]:",
    "srun": "{}: ",
    "mpirun": "[1,{}]<stderr>:",
    "words": "Rank {}: ",
    "worker": "(VllmWorker rank={} pid=4711) ",
    "logging": "2025-03-01 12:00:07,123 [rank{}] ERROR: ",
    "colours": "\x1b[36m[rank{}]:\x1b[0m ",
    "stamped": "2021-12-08T01:25:15.387525661Z [rank{}]: ",
}


def of_rank(rank: int, *, asked: str = "16.00 GiB") -> str:
    """An error of a rank that is like no other's."""
    return modern(
        asked, of="79.15 GiB", free=f"{rank + 1}00.00 MiB", process="78.00 GiB", used=f"7{rank}.50 GiB",
        idle="300.00 MiB", gpu=rank,
    )  # fmt: skip


def figures_of(found: FoundMessage) -> tuple[int | None, Figure | None]:
    return found.message.device, found.message.free


def test_message_on_one_line_has_its_line_and_figures() -> None:
    (found,) = messages_in(f"starting\n{TRACEBACK}\n{ERROR}\nbye\n")
    assert (found.line, found.rank, found.worker, found.repeats) == (8, None, None, 1)
    message = found.message
    assert message.origin is OomOrigin.TORCH
    assert message.device == 0
    assert message.asked == Figure(546 * MiB)
    assert message.card == Figure(round(15.77 * GiB), 5368710)
    assert message.process == Figure(round(15.2 * GiB), 53687092)
    assert message.versions == "2.3 or newer"


def test_wrapped_message_says_the_same() -> None:
    (whole,), (wrapped,) = messages_in(ERROR), messages_in(WRAPPED)
    assert wrapped.message == whole.message


@pytest.mark.parametrize("width", [44, 61, 80, 97, 120])
def test_message_broken_within_words_says_the_same(width: int) -> None:
    text = "\n".join(ERROR[at : at + width] for at in range(0, len(ERROR), width))
    found = messages_in(text)
    assert (len(found), found[0].line) == (1, 1)
    whole = messages_in(ERROR)[0].message
    assert (found[0].message.asked, found[0].message.card) == (whole.asked, whole.card)
    assert (found[0].message.allocated, found[0].message.idle) == (whole.allocated, whole.idle)


def test_message_without_its_beginning_is_read() -> None:
    (found,) = messages_in(ERROR[ERROR.index("Tried") :])
    assert found.message == messages_in(ERROR)[0].message


def test_message_in_a_frame_says_the_same() -> None:
    text = "\n".join(f"│ {line:<100} │" for line in WRAPPED.splitlines())
    assert messages_in(text)[0].message == messages_in(ERROR)[0].message


def test_message_in_json_says_the_same() -> None:
    escaped = WRAPPED.replace("\n", "\\n")
    assert messages_in(f'{{"level": "error", "message": "{escaped}"}}')[0].message == messages_in(ERROR)[0].message


def test_figures_of_the_driver_s_pools_stand_a_line_each() -> None:
    (found,) = messages_in(on_driver_pools("640.00 MiB", used="9.43 GiB", of="11.59 GiB", free="7.12 MiB"))
    assert found.message.asked == Figure(640 * MiB, 5243)
    assert found.message.free == Figure(round(7.12 * MiB), 5243)
    assert found.message.limit is None


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
def test_rank_is_read_from_the_line_s_beginning(prefix: str) -> None:
    (found,) = messages_in(prefix.format(3) + ERROR)
    assert found.rank == 3


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        ("ERROR: training failed on rank 3: {}", 3),
        ("exception in worker [Rank 5] {}", 5),
        ("[rank2]: lost rank 7: {}", 2),
        ('  File "train.py", line 88: {}', None),
        ("epoch 3: step 100: {}", None),
        (
            '{{"lora": {{"rank": 16}}, "optimizer": "adamw", "learning_rate": 0.0001, "length": 81, "error": "{}"}}',
            None,
        ),
    ],
)
def test_rank_within_a_line_is_one_only_where_it_says_so(line: str, rank: int | None) -> None:
    assert [found.rank for found in messages_in(line.format(ERROR))] == [rank]


def test_worker_s_own_name_is_kept_where_it_has_no_rank() -> None:
    (ray,) = messages_in(f"(RayWorker pid=4711, ip=10.0.0.7) {ERROR}")
    assert (ray.rank, ray.worker) == (None, "RayWorker pid=4711, ip=10.0.0.7")
    (compose,) = messages_in(f"trainer-2  | {ERROR}")
    assert (compose.rank, compose.worker) == (None, "trainer-2")


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
@pytest.mark.parametrize("is_wrapped", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_eight_ranks_between_one_another_are_told_apart(prefix: str, is_wrapped: bool, seed: int) -> None:
    chance = random.Random(seed)
    pending: list[list[str]] = []
    for rank in range(8):
        text = of_rank(rank).replace(". ", ".\n") if is_wrapped else of_rank(rank)
        lines = [*TRACEBACK.splitlines(), *text.splitlines(), "torch.distributed.elastic: exit code 1"]
        pending.append([prefix.format(rank) + line for line in lines])
    log: list[str] = []
    while any(pending):
        log.append(chance.choice([lines for lines in pending if lines]).pop(0))
    found = messages_in("\n".join(log))
    assert sorted(one.rank or 0 for one in found) == list(range(8))
    for one in found:
        assert one.rank is not None
        assert figures_of(one) == figures_of(messages_in(of_rank(one.rank))[0])
        assert one.message.idle == Figure(300 * MiB, 5243)
        assert log[one.line - 1].endswith("CUDA out of memory." if is_wrapped else "cuda.html#environment-variables)")


def test_same_error_told_again_is_counted_once() -> None:
    chain = f"{ERROR}\n\nDuring handling of the above exception, another exception occurred:\n\n{TRACEBACK}\n{ERROR}\n"
    (found,) = messages_in(chain)
    assert (found.line, found.repeats) == (1, 2)


def test_launcher_s_report_of_a_rank_s_error_is_that_error() -> None:
    found = messages_in(f"[rank1]: {of_rank(1)}\n[rank2]: {of_rank(2)}\nRoot Cause:\n  message: {of_rank(2)}\n")
    assert [(one.rank, one.line) for one in found] == [(1, 1), (2, 2)]


def test_error_without_figures_beside_one_with_them_is_that_one() -> None:
    (found,) = messages_in(f"{ERROR}\nERROR: CUDA out of memory\nRuntimeError: CUDA error: out of memory\n")
    assert found.message.asked == Figure(546 * MiB)


def test_error_of_a_library_is_another_than_the_allocator_s() -> None:
    found = messages_in(
        f"[rank0]: {ERROR}\n[rank1]: RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling x\n"
    )
    assert [(one.rank, one.message.origin) for one in found] == [(0, OomOrigin.TORCH), (1, OomOrigin.LIBRARY)]
    assert found[1].message.wording == "CUBLAS_STATUS_ALLOC_FAILED"


def test_code_that_speaks_of_the_error_is_no_error() -> None:
    code = "    if \"CUDA out of memory\" in str(error):\n    if 'CUDA error: out of memory' not in text:\n"
    with pytest.raises(InputError, match="no out-of-memory error in 2 lines"):
        read_oom_text(code)


@pytest.mark.parametrize(
    ("text", "asked", "held", "limit"),
    [
        (cupy(8589934592, 4096), 8589934592, 4096, None),
        (cupy(8589934592, 4096, 17179869184), 8589934592, 4096, 17179869184),
        ("Exception in main training loop: out of memory to allocate 100 bytes (total 1100 bytes)", 100, 1000, None),
        ("out of memory to allocate 100 bytes (total 1100 bytes, limit set to 1050 bytes)", 100, 1000, 1050),
    ],
)
def test_cupy_s_bytes_are_exact(text: str, asked: int, held: int, limit: int | None) -> None:
    message = messages_in(text)[0].message
    assert message.asked == Figure(asked)
    assert message.reserved == Figure(held)
    assert message.limit == (None if limit is None else Figure(limit))


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("RuntimeError: CUDA driver error: CUDA_ERROR_OUT_OF_MEMORY", None),
        ("RuntimeError: HIP error: out of memory", None),
    ],
)
def test_other_libraries_errors_are_found(text: str, asked: int | None) -> None:
    message = messages_in(text)[0].message
    assert message.origin is OomOrigin.LIBRARY
    assert message.asked == (None if asked is None else Figure(asked))


@pytest.mark.parametrize(
    ("text", "asked", "device"),
    [
        ("jax: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.", 17179869184, None),
        ("XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 20029400304 bytes.", 20029400304, None),
        (
            "XlaError: RESOURCE_EXHAUSTED: Failed to allocate request for 2.99GiB (3206250496B) on device ordinal 1",
            3206250496,
            1,
        ),
        ("Resource exhausted: Failed to allocate request for 32.00MiB (33554432B) on device ordinal 0", 33554432, 0),
        (
            "failed to allocate 17.79G (19104890880 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
            19104890880,
            None,
        ),
        (
            "OOM when allocating tensor with shape[64,9] and type float on /job:a/device:GPU:3 by allocator GPU_3_bfc",
            None,
            3,
        ),
    ],
)
def test_errors_of_xla_are_told_from_those_of_pytorch_and_of_libraries(
    text: str, asked: int | None, device: int | None
) -> None:
    found = messages_in(text)
    assert [one.message.origin for one in found] == [OomOrigin.XLA]
    assert found[0].message.asked == (None if asked is None else Figure(asked))
    assert found[0].message.device == device


def test_tensorflow_s_error_about_host_memory_is_none_of_a_gpu() -> None:
    text = "OOM when allocating tensor with shape[1,2] and type float on /job:localhost/device:CPU:0 by allocator cpu"
    with pytest.raises(InputError):
        messages_in(text)


@pytest.mark.parametrize(
    ("message", "versions"),
    [
        (classic("2.00 MiB", of="8.00 GiB", used="7.00 GiB", free="0 bytes", cached="1.00 MiB"), "1.3 or older"),
        (classic("2.00 MiB", of="8.00 GiB", used="7.00 GiB", free="0 bytes", reserved="7.00 GiB"), "1.4 to 2.0"),
        *[
            (modern("2.00 MiB", of="8.00 GiB", free="0 bytes", used="7.00 GiB", idle="1.00 MiB", release=release), said)
            for release, said in (("2.1", "2.1 to 2.2"), ("2.10", "2.10"), ("2.11", "2.11 or newer"))
        ],
        (
            modern("2.00 MiB", of="8.00 GiB", free="0 bytes", used="7.00 GiB", idle="1.00 MiB", pools="2.00 MiB"),
            "2.4 or newer",
        ),
    ],
)
def test_shape_names_the_releases_that_print_it(message: str, versions: str) -> None:
    assert messages_in(message)[0].message.versions == versions


def test_last_settings_in_force_are_kept() -> None:
    log = read_oom_text(
        "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128\nPYTORCH_ALLOC_CONF=expandable_segments:True,"
        f"roundup_power2_divisions:[256:1,>:4]\n{ERROR}"
    )
    assert log.settings == "expandable_segments:True,roundup_power2_divisions:[256:1,>:4]"
    assert read_oom_text(ERROR).settings is None


def test_errors_beyond_the_most_that_are_kept_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oom_log, "MESSAGES_MAX", 3)
    log = read_oom_text("\n".join(of_rank(rank) for rank in range(8)))
    assert (len(log.messages), log.left_out_count) == (3, 5)


# ---- what is no such text ----


def test_text_without_such_an_error_says_what_was_looked_for() -> None:
    with pytest.raises(InputError) as caught:
        read_oom_text("Traceback\nValueError: bad shape\n")
    assert str(caught.value) == (
        "the text given has no out-of-memory error in 2 lines: looked for those of PyTorch, CuPy, gpumem, XLA, CUDA "
        "and its libraries; give the output of the process that failed, with its errors in it (2>&1)."
    )


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is empty; give the program's output"),
        (b"PK\x03\x04rest", "is a recording or an archive, no log; of a recording, gpumem snapshot --at oom says"),
        (b"\x80\x04\x95pickle", "is a pickle, no log"),
        (b"\x1f\x8b\x08rest", "is compressed; unpack it first"),
        (b"BZh91AY&SY", "is compressed; unpack it first"),
        (b"\x00\x01\x02" * 1000, "has no out-of-memory error in 1 line"),
    ],
)
def test_file_that_is_no_log_says_what_it_is(content: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(InputError, match="file") as caught:
        read_oom_log(str(path))
    assert sentence in str(caught.value)


def test_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(TraceNotFound, match="does not exist; check the name, or give the log on standard input as -"):
        read_oom_log(str(tmp_path / "missing.log"))
    with pytest.raises(TraceNotFound, match="is a folder; name the log in it"):
        read_oom_log(str(tmp_path))
