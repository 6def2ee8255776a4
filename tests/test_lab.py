"""`paged_edu.lab`: the reader's notebooks are copied once and never lost."""
import json
import sys

import pytest

from paged_edu import lab


@pytest.fixture
def shipped(monkeypatch):
    content = {"00_tour.ipynb": b'{"cells": []}', "solutions/00.ipynb": b"{}"}
    monkeypatch.setattr(lab, "shipped_notebooks", lambda: content)
    return content


def test_the_package_ships_the_tour_and_no_python_files():
    names = lab.shipped_notebooks()
    assert "00_one_minute_tour.ipynb" in names
    assert json.loads(names["00_one_minute_tour.ipynb"])["nbformat"] == 4
    assert not [name for name in names if name.endswith((".py", ".pyc")) or "__pycache__" in name or "checkpoint" in name]


def test_copies_everything_into_a_new_folder(tmp_path, shipped):
    target = tmp_path / "a" / "b"
    assert lab.copy_notebooks(target) == [target / name for name in shipped]
    assert {name: (target / name).read_bytes() for name in shipped} == shipped


def test_a_second_copy_does_nothing_and_says_nothing(tmp_path, shipped, capsys):
    lab.copy_notebooks(tmp_path)
    assert lab.copy_notebooks(tmp_path) == []
    assert capsys.readouterr().out == ""


def test_keeps_what_the_reader_changed_and_says_so(tmp_path, shipped, capsys):
    mine = tmp_path / "00_tour.ipynb"
    mine.write_bytes(b"my answers")
    assert lab.copy_notebooks(tmp_path) == [tmp_path / "solutions/00.ipynb"]
    assert mine.read_bytes() == b"my answers"
    assert str(mine) in capsys.readouterr().out


def test_a_file_as_target_is_refused(tmp_path, shipped):
    target = tmp_path / "file"
    target.write_text("")
    with pytest.raises(NotADirectoryError, match="is a file"):
        lab.copy_notebooks(target)


def test_a_folder_in_the_place_of_a_notebook_is_kept(tmp_path, shipped, capsys):
    (tmp_path / "00_tour.ipynb").mkdir()
    assert lab.copy_notebooks(tmp_path) == [tmp_path / "solutions/00.ipynb"]
    assert "kept" in capsys.readouterr().out


def test_without_jupyterlab_says_what_to_install(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(lab.importlib.util, "find_spec", lambda name: None)
    assert lab.open_lab(tmp_path / "lessons", open_browser=False) == 1
    assert "pip install 'paged-edu[lab]'" in capsys.readouterr().err
    assert not (tmp_path / "lessons").exists()


def test_starts_jupyterlab_in_the_folder(tmp_path, shipped, monkeypatch):
    calls = []

    class Process:
        def __init__(self, command):
            calls.append(command)
            self.answers = [KeyboardInterrupt, 7]

        def wait(self):
            answer = self.answers.pop(0)
            if answer is KeyboardInterrupt:
                raise answer
            return answer

    trusted = []
    monkeypatch.setattr(lab, "trust", trusted.extend)
    monkeypatch.setattr(lab.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(lab.subprocess, "Popen", Process)
    assert lab.open_lab(tmp_path, open_browser=False, extra_args=["--port=1"]) == 7
    assert calls == [[sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={tmp_path.resolve()}", "--no-browser", "--port=1"]]
    assert trusted == [tmp_path / name for name in shipped]
    lab.open_lab(tmp_path, open_browser=True)
    assert "--no-browser" not in calls[1]


def test_what_was_copied_is_trusted_and_what_was_changed_is_not(tmp_path, monkeypatch):
    nbformat = pytest.importorskip("nbformat")
    from nbformat.sign import NotebookNotary

    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    path = next(p for p in lab.copy_notebooks(tmp_path / "lessons") if p.suffix == ".ipynb")
    lab.trust([path])
    notebook = nbformat.read(path, as_version=4)
    assert NotebookNotary().check_signature(notebook)
    notebook.cells[0].source += "changed"
    assert not NotebookNotary().check_signature(notebook)


def test_a_home_that_cannot_be_written_is_no_reason_to_stop(tmp_path, capsys):
    lab.trust([tmp_path / "missing.ipynb"])
    assert "could not be marked as trusted" in capsys.readouterr().err
