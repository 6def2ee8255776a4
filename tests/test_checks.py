"""Where a result shall go is found out before anything runs, and the search leaves nothing behind."""
import os
import stat
import sys
from pathlib import Path

import pytest

from paged_edu import cli
from paged_edu.checks import number, writable_file


def test_a_number_that_is_refused_for_its_size_is_told_the_limit():
    for value, said in ((1e308, r"at most 1e\+300, not 1e\+308"), (float("inf"), "above 0 and finite"), (float("nan"), "above 0 and finite")):
        with pytest.raises(ValueError, match=said):
            number("x", value, 0, low_open=True)
    number("x", 1e300, 0)


def test_a_new_file_is_not_left_behind(tmp_path):
    writable_file("--json", tmp_path / "new.json")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_keeps_its_content(tmp_path):
    file = tmp_path / "old.json"
    file.write_text("kept")
    writable_file("--json", file)
    assert file.read_text() == "kept"


def test_a_link_to_a_file_that_is_still_to_be_made(tmp_path):
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "new.json")
    writable_file("--json", link)
    assert list(tmp_path.iterdir()) == [link]
    link.unlink()
    link.symlink_to(tmp_path / "missing" / "new.json")
    with pytest.raises(ValueError, match="missing does not exist"):
        writable_file("--json", link)


def test_what_cannot_be_written_is_named(tmp_path, monkeypatch):
    for path, said in ((tmp_path, "is a directory"), (tmp_path / "no" / "x.json", "does not exist"), (tmp_path / ("x" * 300), "name too long")):
        with pytest.raises((ValueError, OSError), match=f"(?i){said}"):
            writable_file("--json", path)
    file = tmp_path / "old.json"
    file.write_text("kept")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ValueError, match=r"old.json: no permission"):
        writable_file("--json", file)


def test_a_folder_in_which_nothing_can_be_made(tmp_path):
    folder = tmp_path / "locked"
    folder.mkdir()
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    if os.access(folder, os.W_OK):                                      # root may write anywhere but here
        folder = Path("/proc")
        if not folder.is_dir():
            pytest.skip("root on a system without /proc")
    with pytest.raises(ValueError, match=r"--json .*x\.json: \w"):
        writable_file("--json", folder / "x.json")


@pytest.mark.skipif(sys.platform == "win32", reason="/dev/stdout")
def test_the_standard_output_is_a_file_too():
    writable_file("--json", Path("/dev/stdout"))


@pytest.mark.parametrize(("argv", "run"), [(["demo"], "demo.load"), (["bench", "scheduler"], "bench.scheduler.measure")])
def test_the_commands_ask_first_and_an_interruption_leaves_no_file(capsys, monkeypatch, tmp_path, argv, run):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(f"paged_edu.{run}", interrupted)
    assert cli.main([*argv, "--json", str(tmp_path)]) == 2
    assert f"--json {tmp_path}: that is a directory" in capsys.readouterr().err
    assert cli.main([*argv, "--json", str(tmp_path / "x.json")]) == 130
    assert list(tmp_path.iterdir()) == []
