"""Letters and colours: in order of arrival, never two alike side by side, always readable."""
import itertools

import pytest

from paged_edu.viz.palette import DARK, HATCHES, HUES, LIGHT, OUTLINE, letter, look


def contrast(a: str, b: str) -> float:
    """WCAG 2 contrast ratio."""
    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_letters_in_order_of_arrival():
    assert [letter(i) for i in (0, 1, 6, 7, 25, 26, 51, 52)] == ["A", "B", "G", "H", "Z", "A2", "Z2", "A3"]
    assert len({letter(i) for i in range(500)}) == 500
    with pytest.raises(ValueError, match="-1"):
        letter(-1)


def test_hues_first_then_hatches():
    assert [look(i).hue for i in range(7)] == list(HUES)
    assert [look(i).hatch for i in (0, 6, 7, 13, 14, 21, 28)] == [HATCHES[i] for i in (0, 0, 1, 1, 2, 3, 0)]
    assert len({(look(i).hue, look(i).hatch) for i in range(28)}) == 28


def test_letters_are_readable_on_their_hue():
    assert all(contrast(look(i).hue, look(i).on_hue) >= 4.88 for i in range(28))


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_ink_and_outline_are_readable_on_the_ground(theme):
    assert contrast(theme.ink, theme.ground) > 12
    assert contrast(theme.muted, theme.ground) >= 4.5
    assert contrast(OUTLINE, theme.ground) >= 4.1


def test_neighbours_never_look_alike():
    assert all(look(a).hue != look(b).hue for a, b in itertools.pairwise(range(100)))
