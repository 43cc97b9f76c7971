"""Images and classes as densities on the sphere: von Mises-Fisher, its non-isotropic form, and eight similarities."""

from proxemics.methods.probabilistic.criterion import ProbabilisticProxies
from proxemics.methods.probabilistic.distances import (
    b_vmf,
    el_vmf,
    kl_vmf,
    l2_similarity,
    probability_product,
    vmf_log_density,
)
from proxemics.methods.probabilistic.nivmf import el_nivmf, nivmf_log_density
from proxemics.methods.probabilistic.normalizer import vmf_log_normalizer, vmf_mean_resultant_length
from proxemics.methods.probabilistic.released_anchor import released_proxy_anchor
from proxemics.methods.probabilistic.sampling import sample_vmf
from proxemics.methods.probabilistic.warm_start import class_means, scale_last_linear

__all__ = [
    "ProbabilisticProxies",
    "b_vmf",
    "class_means",
    "el_nivmf",
    "el_vmf",
    "kl_vmf",
    "l2_similarity",
    "nivmf_log_density",
    "probability_product",
    "released_proxy_anchor",
    "sample_vmf",
    "scale_last_linear",
    "vmf_log_density",
    "vmf_log_normalizer",
    "vmf_mean_resultant_length",
]
