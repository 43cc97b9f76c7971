"""Floor 2: plug-ins that work on top of any proxy loss and leave nothing behind in the exported model."""

from proxemics.methods.base import Batch, Method, Needs, Start, Step
from proxemics.methods.probabilistic import ProbabilisticProxies
from proxemics.methods.see import SEE

__all__ = ["SEE", "Batch", "Method", "Needs", "ProbabilisticProxies", "Start", "Step"]
