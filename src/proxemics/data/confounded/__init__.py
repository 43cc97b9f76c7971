"""Confounded glyphs: a retrieval set with known causes, rendered from parts that ordinary dependencies ship.

Objects are glyphs of fonts inside matplotlib (font style is the domain), backgrounds are crops of photographs inside
scikit-image, nuisances are pose, scale, illumination and hue. ``rho`` sets how strongly class and background co-occur
in training; test classes are unseen and their backgrounds independent.
"""

from proxemics.data.confounded.backgrounds import PHOTOGRAPHS, SOURCES
from proxemics.data.confounded.causes import Causes, co_occurrence, draw_causes, tied_background
from proxemics.data.confounded.compose import Composite
from proxemics.data.confounded.cutouts import composite, cut_out
from proxemics.data.confounded.glyphs import FONTS, choose_glyphs
from proxemics.data.confounded.render import Rendered, Scene, render
from proxemics.data.confounded.spec import ConfoundedSpec
from proxemics.data.confounded.write import write

__all__ = [
    "FONTS",
    "PHOTOGRAPHS",
    "SOURCES",
    "Causes",
    "Composite",
    "ConfoundedSpec",
    "Rendered",
    "Scene",
    "choose_glyphs",
    "co_occurrence",
    "composite",
    "cut_out",
    "draw_causes",
    "render",
    "tied_background",
    "write",
]
