"""`gpumem oom` and `gpumem explain --message` as people type them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from gpumem.trace.file import write_trace
from gpumem_cli.main import run_command_line, unknown_command
from oom_messages import ERROR
from trace_builder import MiB
from training_trace import training_trace


@pytest.fixture
def log(tmp_path: Path) -> str:
    path = tmp_path / "train.log"
    path.write_text(f"[rank0]: epoch 1\n[rank1]: {ERROR}\n[rank0]: {ERROR.replace('546', '600')}\n")
    return str(path)


def gpumem(*arguments: str, capture: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    code = run_command_line(arguments)
    out, err = capture.readouterr()
    return code, out, err


def test_log_is_explained_in_text_and_json(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, err = gpumem("oom", log, capture=capsys)
    assert (code, err) == (0, "")
    assert text.startswith("2 out-of-memory errors of 2 ranks in")
    assert "Fragmentation: the bytes were there, but not in one piece. 600.00 MiB were asked\nfor;" in text
    assert "\x1b" not in text
    code, document, err = gpumem("oom", log, "--json", capture=capsys)
    assert (code, err) == (0, "")
    messages = json.loads(document)["messages"]
    assert [(one["rank"], one["requested_bytes"]) for one in messages] == [(1, 546 * MiB), (0, 600 * MiB)]


def test_one_rank_is_shown_alone(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, text, _ = gpumem("oom", log, "--rank", "1", capture=capsys)
    assert text.startswith("Fragmentation: the bytes were there, but not in one piece. 546.00 MiB")
    code, out, err = gpumem("oom", log, "--rank", "7", capture=capsys)
    assert (code, out) == (2, "")
    assert err.endswith("train.log has no out-of-memory error of rank 7; it has those of rank 0, 1.\n")


@pytest.mark.parametrize("arguments", [("oom", "-"), ("explain", "--message", "-")])
def test_standard_input_is_read(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(ERROR.encode())))
    code, text, err = gpumem(*arguments, capture=capsys)
    assert (code, err) == (0, "")
    assert "GPU 0 · line 1 of standard input · PyTorch 2.3 or newer" in text


def test_explain_takes_the_error_itself_or_a_file(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    for message, lines in ((ERROR, 1), ("CUDA_ERROR_OUT_OF_MEMORY", 1), (log, 3)):
        code, document, _ = gpumem("explain", "--message", message, "--json", capture=capsys)
        assert code == 0
        found = json.loads(document)
        assert (found["schema"], found["lines"]) == ("gpumem.oom/1", lines)


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["oom"], 2, "Missing argument 'FILE|-'. See gpumem oom --help."),
        (
            ["oom", "{missing}"],
            3,
            "missing.log does not exist; check the name, or give the log on standard input as -.",
        ),
        (["oom", "{folder}"], 3, "is a folder; name the log in it."),
        (["oom", "{empty}"], 3, "is empty; give the program's output with its errors in it (2>&1)."),
        (["oom", "{binary}"], 3, "has no out-of-memory error in 10 lines: looked for those of PyTorch"),
        (
            ["oom", "{trace}"],
            3,
            "is a recording or an archive, no log; of a recording, gpumem snapshot --at oom says why",
        ),
        (["oom", "{text}"], 3, "has no out-of-memory error in 1 line: looked for those of PyTorch"),
        (["oom", "{text}", "--top", "0"], 2, "'0' is no whole number from 1 on"),
        (["explain", "--message", "all is well"], 3, "the text given has no out-of-memory error in 1 line"),
        (["explain", "--message", "nofile.log"], 3, "nofile.log does not exist"),
        (["explain", "--message", "-", "{trace}"], 2, "--message stands alone: it needs no trace, and no process."),
        (["explain", "--message", " "], 2, "--message is empty; give the error's text, the name of a log, or -"),
    ],
)
def test_mistake_is_one_sentence(
    arguments: list[str], code: int, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    contents = {"empty": b"", "binary": bytes(range(256)) * 8 + b"\n\xff", "text": b"hello\n"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    write_trace(training_trace(), tmp_path / "t.gpumem")
    places = {name: str(tmp_path / name) for name in contents}
    places |= {"missing": str(tmp_path / "missing.log"), "folder": str(tmp_path), "trace": str(tmp_path / "t.gpumem")}
    left, out, err = gpumem(*(word.format(**places) for word in arguments), capture=capsys)
    assert (left, out) == (code, "")
    assert err.startswith("gpumem: ")
    assert sentence in err
    assert err.count("\n") == 1


def test_words_people_try_lead_here() -> None:
    assert unknown_command("out-of-memory").endswith("try gpumem oom.")
