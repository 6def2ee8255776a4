"""A still picture as the value of a cell."""
from paged_edu.viz import Still
from paged_edu.viz.picture import readme_picture


def test_picture_and_words():
    bundle = Still(readme_picture())._repr_mimebundle_()
    assert set(bundle) == {"image/svg+xml", "text/plain"}
    assert bundle["text/plain"].startswith("24 requests share 960 slots")
    assert repr(Still('<svg aria-label="a &lt; b"/>')) == "a < b"
    assert repr(Still("<svg/>")) == "a picture"
