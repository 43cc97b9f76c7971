"""Floor 2: plug-ins that work on top of any proxy loss and leave nothing behind in the exported model."""

from proxemics.methods.base import Batch, Method, Needs, Seen, Start, Step, View
from proxemics.methods.build import METHODS, Shapes, build_methods
from proxemics.methods.center_polar import CenterPolar, ExpansionEqualisation
from proxemics.methods.couce import MSRCI, ODBA, CouCE
from proxemics.methods.probabilistic import ProbabilisticProxies
from proxemics.methods.see import SEE

__all__ = [
    "METHODS",
    "MSRCI",
    "ODBA",
    "SEE",
    "Batch",
    "CenterPolar",
    "CouCE",
    "ExpansionEqualisation",
    "Method",
    "Needs",
    "ProbabilisticProxies",
    "Seen",
    "Shapes",
    "Start",
    "Step",
    "View",
    "build_methods",
]
