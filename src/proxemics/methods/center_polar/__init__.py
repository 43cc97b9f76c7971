"""CenterPolar: centrifugal expansion from class centroids (C3E), centripetal constraint (C4), and the baseline."""

from proxemics.methods.center_polar.cap import class_preserving_cap
from proxemics.methods.center_polar.constraint import Constraint, centripetal_constraint
from proxemics.methods.center_polar.equalisation import ExpansionEqualisation
from proxemics.methods.center_polar.expansion_loss import expansion_loss
from proxemics.methods.center_polar.generator import expand_pictures
from proxemics.methods.center_polar.geodesic import angles_between, centrifugal_step
from proxemics.methods.center_polar.method import CenterPolar
from proxemics.methods.center_polar.style import restyle

__all__ = [
    "CenterPolar",
    "Constraint",
    "ExpansionEqualisation",
    "angles_between",
    "centrifugal_step",
    "centripetal_constraint",
    "class_preserving_cap",
    "expand_pictures",
    "expansion_loss",
    "restyle",
]
