"""Colours are legible on light and dark, told apart by the colour-blind, and never stand alone."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mooncake_edu.pictures.palette import DARK, INK, LIGHT, PAINTS, Paint

# Machado, Oliveira, Fernandes 2009, severity 1: what people without one kind of cone see, in linear RGB.
BLINDNESS = {
    "none": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}


def linear(colour: str) -> np.ndarray:
    values = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    light, dark = sorted((float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (one, other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def lab(rgb: np.ndarray) -> np.ndarray:
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = np.cbrt(np.clip(to_xyz @ rgb / [0.9505, 1.0, 1.089], 1e-6, None))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("paint", PAINTS, ids=lambda paint: paint.label)
@pytest.mark.parametrize("background", [LIGHT, DARK])
def test_every_colour_stands_out_from_both_backgrounds(paint: Paint, background: str) -> None:
    assert contrast(paint.colour, background) >= 3  # WCAG 1.4.11, graphical objects


@pytest.mark.parametrize("background", [LIGHT, DARK])
def test_text_on_an_unknown_background_is_readable_on_both(background: str) -> None:
    assert contrast(INK, background) >= 4


@pytest.mark.parametrize("blindness", BLINDNESS)
def test_colours_of_different_meaning_differ_for_the_colour_blind(blindness: str) -> None:
    for one, other in itertools.combinations(PAINTS, 2):
        seen = [lab(np.clip(BLINDNESS[blindness] @ linear(paint.colour), 0, 1)) for paint in (one, other)]
        waiting_is_free_time = one.colour == other.colour  # both grey: nothing is done; their patterns differ
        assert waiting_is_free_time or np.linalg.norm(seen[0] - seen[1]) >= 20, (one, other)


def test_no_two_meanings_share_a_pattern_or_a_name() -> None:
    assert len({paint.pattern for paint in PAINTS}) == len({paint.label for paint in PAINTS}) == len(PAINTS)
