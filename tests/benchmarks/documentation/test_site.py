"""Dead links and files from elsewhere are found in a built site."""

import pytest

from benchmarks.documentation import site

GOOD = '<h1 id="top">x</h1><a href="sub/b.html#there">b</a><a href="#top">x</a><a href="https://example.org">y</a>'


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "index.html").write_text(GOOD)
    (tmp_path / "sub" / "b.html").write_text('<p id="there"><a href="/index.html">up</a><img src="../a.png">')
    (tmp_path / "a.png").touch()
    (tmp_path / "style.css").write_text("p { background: url(a.png) }")
    return tmp_path


def test_a_site_without_faults(folder, capsys):
    assert site.main([str(folder)]) == 0
    assert "no dead links" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("index.html", '<a href="gone.html">', "index.html links to gone.html, which does not exist"),
        ("index.html", '<a href="sub/b.html#gone">', "links to sub/b.html#gone"),
        ("index.html", '<a href="#gone">', "links to #gone"),
        ("index.html", '<img src="gone.png">', "links to gone.png"),
        ("index.html", '<script src="https://example.org/x.js">', "loads https://example.org/x.js"),
        ("index.html", '<link rel="stylesheet" href="//example.org/x.css">', "loads //example.org/x.css"),
        ("style.css", "@import 'https://example.org/x.css'", "style.css loads https://example.org/x.css"),
        ("style.css", "p { src: url(https://example.org/f) }", "style.css loads https://example.org/f"),
    ],
)
def test_faults_are_reported(folder, capsys, file, text, message):
    (folder / file).write_text(text)
    assert site.main([str(folder)]) == 1
    assert message in capsys.readouterr().out


def test_an_empty_folder_is_no_site(tmp_path):
    assert site.main([str(tmp_path)]) == 1
