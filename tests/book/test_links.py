"""The link check finds what is broken."""
from __future__ import annotations

from links import faults


def test_what_is_broken_is_found(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.html").write_text('<p id="here"></p><a href="../index.html#top">up</a><a href="#gone">nowhere</a>')
    (tmp_path / "index.html").write_text(
        '<h1 id="top"></h1><a href="a/b.html#here">good</a><a href="a/c.html">no file</a><a href="https://example.org/x">elsewhere</a>'
        '<img src="data:image/png;base64,AA" alt="dot"><img src="p.png"><script src="https://cdn.example.org/x.js"></script>')
    wrong, outside, count = faults(tmp_path)
    assert len(wrong) == 5
    for part in ("a/c.html: there is no such file", "#gone: there is no such place", "without alt text: p.png", "p.png: there is no such file",
                 "loads https://cdn.example.org/x.js from elsewhere"):
        assert any(part in line for line in wrong), part
    assert "https://example.org/x" in outside
    assert count == 8
